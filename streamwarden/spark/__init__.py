"""Spark itself: the pinned JVM jars, our classes for S3, and the session. Shared by driver/ and quality/."""
