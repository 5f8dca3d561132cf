-- +goose Up
-- How far in the log the records tell, and the number of the last write: it keeps two writers from interleaving.
CREATE TABLE position (
    one    boolean PRIMARY KEY DEFAULT true CHECK (one),
    log    bigint NOT NULL DEFAULT 0, -- when the log was made, ns since 1970
    seq    bigint NOT NULL DEFAULT 0,
    writes bigint NOT NULL DEFAULT 0,
    writer text NOT NULL DEFAULT '',
    closed boolean NOT NULL DEFAULT false -- another schema serves: nothing more is written here
);
INSERT INTO position DEFAULT VALUES;

-- One row a request. made is when it came, by its id, and says in which day's partition it is. Money is in nano-dollars.
CREATE TABLE generations (
    made               timestamptz NOT NULL,
    id                 text COLLATE "C" NOT NULL,
    org                text COLLATE "C" NOT NULL,
    workspace          text,
    principal          text,
    key                text COLLATE "C",
    model              text,
    operation          text,
    provider           text,
    gateway            text,
    created            timestamptz NOT NULL,
    ended              timestamptz,
    state              text NOT NULL,
    outcome            text NOT NULL, -- in_progress for one that runs
    status             bigint NOT NULL,
    error_code         text,
    error_origin       text,
    limit_scope        text, -- of the last refusal
    limit_kind         text,
    limit_id           text,
    parked_ms          bigint NOT NULL,
    latency_ms         bigint NOT NULL,
    usage_quality      text,
    input_tokens       bigint NOT NULL,
    cached_tokens      bigint NOT NULL,
    cache_write_tokens bigint NOT NULL,
    output_tokens      bigint NOT NULL,
    reasoning_tokens   bigint NOT NULL,
    cost_nano          bigint NOT NULL,
    price_version      text,
    settled            boolean NOT NULL,
    attempts           bigint NOT NULL,
    log                bigint NOT NULL, -- the log that the record was folded from, and from where to where
    first_seq          bigint NOT NULL,
    last_seq           bigint NOT NULL,
    record             bytea NOT NULL, -- the record whole: JSON, compressed with zstd
    PRIMARY KEY (made, id)
) PARTITION BY RANGE (made);
CREATE INDEX generations_of_org ON generations (org, made, id);
CREATE INDEX generations_of_key ON generations (org, key, made, id);
ALTER TABLE generations ALTER COLUMN record SET STORAGE EXTERNAL;

-- One row a try of a request at a backend.
CREATE TABLE attempts (
    made               timestamptz NOT NULL, -- the request's
    request            text COLLATE "C" NOT NULL,
    attempt            bigint NOT NULL,
    org                text COLLATE "C" NOT NULL,
    key                text COLLATE "C",
    model              text,
    deployment         text,
    gateway            text,
    seq                bigint NOT NULL, -- of its reserve
    reserved           timestamptz NOT NULL,
    verdict            text NOT NULL, -- admitted or refused; empty: not known yet
    mode               text,
    parked_ms          bigint NOT NULL,
    wait_ms            bigint NOT NULL,
    final              boolean NOT NULL,
    usage_quality      text,
    input_tokens       bigint NOT NULL,
    cached_tokens      bigint NOT NULL,
    cache_write_tokens bigint NOT NULL,
    output_tokens      bigint NOT NULL,
    reasoning_tokens   bigint NOT NULL,
    cost_nano          bigint,
    price_version      text,
    revision           bigint, -- of the correction that usage and cost are from
    released           timestamptz,
    outcome            text,
    dispatched         text,
    status             bigint NOT NULL,
    latency_ms         bigint NOT NULL,
    ttft_ms            bigint NOT NULL,
    error_code         text,
    error_origin       text,
    PRIMARY KEY (made, request, attempt)
) PARTITION BY RANGE (made);

-- One row a refusal, wait, fallback or shadow refusal on a request's way to admission.
CREATE TABLE admission_events (
    made           timestamptz NOT NULL, -- the request's
    request        text COLLATE "C" NOT NULL,
    n              bigint NOT NULL,
    org            text COLLATE "C" NOT NULL,
    key            text COLLATE "C",
    model          text,
    event          text NOT NULL, -- refused, parked, paced, shadow, fallback, retry
    at             timestamptz NOT NULL,
    seq            bigint NOT NULL,
    attempt        bigint NOT NULL,
    gate           text,
    origin         text,
    scope          text,
    kind           text,
    limit_id       text,
    meter          text,
    reason         text,
    limit_value    bigint,
    used           bigint,
    requested      bigint,
    retry_after_ms bigint,
    retry_at       timestamptz,
    parked_ms      bigint NOT NULL,
    wait_ms        bigint NOT NULL,
    status         bigint NOT NULL,
    code           text,
    message        text,
    count          bigint NOT NULL, -- refusals that the row stands for
    PRIMARY KEY (made, request, n)
) PARTITION BY RANGE (made);
CREATE INDEX admission_events_of_org ON admission_events (org, made);

-- What belongs to no day that is kept: ids without a time, or made by a clock that is far off.
CREATE TABLE generations_other PARTITION OF generations DEFAULT;
CREATE TABLE attempts_other PARTITION OF attempts DEFAULT;
CREATE TABLE admission_events_other PARTITION OF admission_events DEFAULT;

-- +goose Down
DROP TABLE admission_events, attempts, generations, position;
