"""Advice on a job's parallelism, from the load that its drivers have reported."""
