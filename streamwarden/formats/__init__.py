"""On-disk formats of Spark and Delta. Each module names the version that it was written for."""
