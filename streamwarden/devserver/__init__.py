"""Airflow on one machine, for `make up`, the demo and tests: its components, its REST API. Not for production."""
