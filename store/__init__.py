"""The record: what the processes share. Values, errors, life of a turn, settings, schema, queries. The only SQL of the project."""
