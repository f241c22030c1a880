"""Streamwarden in Airflow: operators and triggers. They only wait and call the core; they import no pyspark."""

from streamwarden.errors import require_extra

require_extra("airflow", "airflow")
