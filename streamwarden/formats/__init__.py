"""What Spark and Delta wrote on disk. Each module names the version it was read against."""
