"""Where Data Docs are, and the styles that they load. Imports no Great Expectations: the API server serves them."""

from __future__ import annotations

from importlib.resources import files

from streamwarden.store.layout import QUALITY

__all__ = ["ASSETS", "KINDS", "asset", "docs_key"]

ASSETS = ("bootstrap.min.css", "data_docs.css")
KINDS = ("validations", "expectations")


def docs_key(run: str, page: str = "index.html") -> str:
    """Return the key of a page of a run's Data Docs."""
    return f"{QUALITY}/{run}/data_docs/{page}"


def asset(name: str) -> bytes:
    """Return a style sheet of :data:`ASSETS`."""
    return (files(__package__) / "static" / name).read_bytes()
