"""Processes on one machine: drivers launched, spares, the lease, scratch folders, logs of a dead driver."""
