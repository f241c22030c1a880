"""The streaming jobs: one module each, as docs/jobs.md describes."""
