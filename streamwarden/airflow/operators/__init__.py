"""Operators: one file a verb."""
