-- +goose Up
-- What the log says beside its requests and balances hang on: credits, fences, recoveries, and what of it was not kept.
CREATE TABLE facts (
    log         bigint NOT NULL, -- when the log was made, ns since 1970
    seq         bigint NOT NULL,
    n           integer NOT NULL, -- of several in one message
    at          timestamptz NOT NULL,
    kind        text NOT NULL, -- credit, fence, recover, gap
    org         text COLLATE "C" NOT NULL,
    amount_nano bigint NOT NULL, -- of a credit
    reference   text NOT NULL,   -- of a credit
    version     bigint NOT NULL, -- of a fence
    from_seq    bigint NOT NULL, -- of a recovery: what was lost; of a gap: what is not kept
    to_seq      bigint NOT NULL,
    PRIMARY KEY (log, seq, n, kind)
);
-- Of the log so far no facts were kept.
INSERT INTO facts SELECT log, seq, 0, now(), 'gap', '', 0, '', 0, 1, seq FROM position WHERE seq > 0;

-- +goose Down
DROP TABLE facts;
