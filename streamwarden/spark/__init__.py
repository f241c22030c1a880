"""Spark: the pinned JVM jars, our classes for logs, and the session. Shared by driver/ and quality/."""
