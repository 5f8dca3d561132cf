-- +goose Up
-- Requests of one model, and those that did not go well, are found in time however rare they are among the others.
CREATE INDEX generations_of_model ON generations (org, model, made, id);
CREATE INDEX generations_of_outcome ON generations (org, outcome, made, id) WHERE outcome <> 'completed';

-- +goose Down
DROP INDEX generations_of_outcome;
DROP INDEX generations_of_model;
