-- +goose Up
-- What was used and what it cost, by hour and by day (UTC). Amounts are numeric: one line's are at most 10^15, so that sums beyond the range
-- of bigint are nearer than one thinks (9,223 such lines), while numeric(38) takes 10^23 of them.
CREATE TABLE usage_hourly (
    org                text NOT NULL,
    start              timestamptz NOT NULL,
    workspace          text NOT NULL,
    key                text NOT NULL,
    model              text NOT NULL,
    price_version      text NOT NULL,
    requests           bigint NOT NULL,
    unsettled          bigint NOT NULL,
    corrections        bigint NOT NULL,
    input_tokens       numeric(38) NOT NULL,
    cached_tokens      numeric(38) NOT NULL,
    cache_write_tokens numeric(38) NOT NULL,
    output_tokens      numeric(38) NOT NULL,
    reasoning_tokens   numeric(38) NOT NULL,
    cost_nano          numeric(38) NOT NULL,
    PRIMARY KEY (org, start, workspace, key, model, price_version)
);
CREATE INDEX usage_hourly_start ON usage_hourly (start);

CREATE TABLE usage_daily (LIKE usage_hourly INCLUDING ALL);

-- How far the stream USAGE has been counted: one row, changed in one transaction with what was counted. Instants are nanoseconds since 1970.
CREATE TABLE usage_position (
    one            boolean PRIMARY KEY DEFAULT true CHECK (one),
    stream_created bigint NOT NULL,
    stream_seq     bigint NOT NULL,
    log_created    bigint NOT NULL,
    log_seq        bigint NOT NULL,
    log_n          bigint NOT NULL,
    as_of          bigint NOT NULL
);
INSERT INTO usage_position VALUES (true, 0, 0, 0, 0, 0, 0);

-- +goose Down
DROP TABLE usage_position;
DROP TABLE usage_daily;
DROP TABLE usage_hourly;
