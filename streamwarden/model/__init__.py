"""Pydantic models only, without I/O: job specs, profiles, status records, savepoint records."""
