"""Operations for stateful Spark Structured Streaming, run from Airflow."""

__version__ = "0.1.0"
