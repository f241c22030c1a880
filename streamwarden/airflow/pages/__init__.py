"""Pages in Airflow's own UI: streams, operations, savepoints and data quality. They read, and change nothing.

:mod:`~streamwarden.airflow.pages.plugin` registers them. Importing this package costs nothing: Airflow loads plugins
in each of its processes, and only the API server serves pages.
"""
