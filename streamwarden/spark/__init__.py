"""Spark itself: the pinned JVM jars and the session. Shared by driver/ and quality/."""
