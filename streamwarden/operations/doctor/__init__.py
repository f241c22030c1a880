"""Examine a place: what is whole, what is not, and the commands that mend it. Writes nothing."""

from streamwarden.operations.doctor.examine import examine
from streamwarden.operations.doctor.findings import Finding, Verdict, in_order

__all__ = ["Finding", "Verdict", "examine", "in_order"]
