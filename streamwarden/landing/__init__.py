"""Landed files: listed in a source's folder, planned into batches, opened by jobs."""
