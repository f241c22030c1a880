"""Expectations over Delta versions: suites, one run over all tables, JSON results and an offline report."""

from streamwarden.quality.results import ExpectationResult, QualityRun, TableResult
from streamwarden.quality.runner import check
from streamwarden.quality.suites import Suite, load_suites

__all__ = ["ExpectationResult", "QualityRun", "Suite", "TableResult", "check", "load_suites"]
