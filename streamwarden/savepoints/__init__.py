"""Savepoints: immutable, verified, catalogued copies of a checkpoint at a committed batch. See docs/savepoints.md."""
