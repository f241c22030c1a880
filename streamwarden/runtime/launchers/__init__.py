"""Launchers start drivers, find them again, and kill them, each in its own kind of place.

How a driver is asked to stop is not theirs: all drivers read the job's documents.
"""
