"""Streamwarden in Airflow: operators and triggers. They only wait and call the core; they import no pyspark."""
