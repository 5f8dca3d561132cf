-- +goose Up
-- What this schema is of: one row.
CREATE TABLE weir (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    made_at    timestamptz NOT NULL DEFAULT now()
);
INSERT INTO weir DEFAULT VALUES;

-- +goose Down
DROP TABLE weir;
