"""The process that runs a job on Spark."""
