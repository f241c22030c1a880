"""Observe a job, decide what its supervisor does next, and act. Includes health rules and alerts."""
