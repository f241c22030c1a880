"""Operations for stateful Spark Structured Streaming, run from Airflow."""

from importlib.metadata import version

# Of what is installed: pyproject.toml is the one place that says it.
__version__ = version("streamwarden")
