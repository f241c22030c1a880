"""The process that runs one job on Spark."""
