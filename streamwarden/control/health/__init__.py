"""Health, a verdict from a job's progress: `limits` what may be, `rules` the verdict, `record` what was told."""
