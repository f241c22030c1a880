"""Job specs, leases, desired state and supervision. Knows neither pyspark nor airflow."""
