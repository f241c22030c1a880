"""Operators, grouped by verb."""
