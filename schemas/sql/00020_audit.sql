-- +goose Up
-- The schemas that hold audit records: the one that serves, one that is being rebuilt, and those that have been replaced. The views
-- generations, attempts and admission_events show what the serving one holds.
CREATE TABLE audit_schemas (
    n          integer PRIMARY KEY,
    name       text NOT NULL UNIQUE,
    state      text NOT NULL CHECK (state IN ('building', 'serving', 'replaced')),
    made_at    timestamptz NOT NULL DEFAULT now(),
    changed_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX audit_schemas_one_serves ON audit_schemas (state) WHERE state = 'serving';

-- +goose Down
DROP VIEW IF EXISTS generations, attempts, admission_events;
DROP TABLE audit_schemas;
