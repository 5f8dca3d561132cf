-- +goose Up
-- Authority that is made through the API.

-- The newest change: one row, locked by who makes the next one.
CREATE TABLE authority_head (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    n   bigint NOT NULL, -- changes so far
    id  text   NOT NULL  -- of the newest; empty before the first
);
INSERT INTO authority_head (n, id) VALUES (0, '');

-- The changes of the last hour, by which a follower knows that it follows the same history.
CREATE TABLE authority_changes (
    n  bigint      PRIMARY KEY,
    id text        NOT NULL,
    at timestamptz NOT NULL DEFAULT now()
);

-- The records, each with the change that last wrote it. One that was taken away stays without a value while the change is kept.
CREATE TABLE authority_records (
    record text   COLLATE "C" PRIMARY KEY, -- org.kind or org.kind.id, bytes outside [A-Za-z0-9_-] as =XX
    n      bigint NOT NULL,
    value  json
);
CREATE INDEX authority_records_n ON authority_records (n);

-- What people are signed in with, by the SHA-256 of their token.
CREATE TABLE authority_sessions (
    hash    bytea       PRIMARY KEY,
    session bytea       NOT NULL,
    until   timestamptz NOT NULL
);
CREATE INDEX authority_sessions_until ON authority_sessions (until);

-- +goose Down
DROP TABLE authority_sessions;
DROP TABLE authority_records;
DROP TABLE authority_changes;
DROP TABLE authority_head;
