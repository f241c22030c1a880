"""Places that earlier versions wrote, and what is read of them."""

from pathlib import Path

PLACES = Path(__file__).parent / "places"
JOB = "counted"
"""The job of each place."""
