"""Ids that sort by creation time."""

from __future__ import annotations

import secrets

from streamwarden.model.record import utc_now

__all__ = ["new_id"]


def new_id() -> str:
    """Return a new id: the time in milliseconds, for sorting, and four random hexadecimal digits."""
    return f"{utc_now():%Y%m%dT%H%M%S%f}"[:-3] + f"z{secrets.token_hex(2)}"
