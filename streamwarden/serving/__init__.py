"""Serving stores: an upserted table's newest rows by key, for readers that need one in a millisecond."""

from __future__ import annotations

from streamwarden.serving.client import FeatureReader
from streamwarden.serving.store import Served

__all__ = ["FeatureReader", "Served"]
