"""Streams beside the trips: payments of trips, sensor readings, trades. All are synthetic."""
