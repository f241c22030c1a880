"""Streamwarden in Airflow: operators and triggers. No logic of its own beyond waiting; no pyspark."""
