"""Advice on how wide a job should run, from the load that its drivers have reported."""
