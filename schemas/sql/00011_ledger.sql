-- +goose Up
-- The mark of the right log: one row. The columns beside it say which of two marks is the newer.
CREATE TABLE ledger (
    one       boolean PRIMARY KEY DEFAULT true CHECK (one),
    seq       bigint NOT NULL, -- how far the log was read
    recovered bigint NOT NULL, -- when an operator last had it gone on with, in nanoseconds since 1970; 0: never
    mark      json   NOT NULL
);

-- +goose Down
DROP TABLE ledger;
