"""Ids that sort by the time at which they were made."""

from __future__ import annotations

import secrets

from streamwarden.model.status import utc_now

__all__ = ["new_id"]


def new_id() -> str:
    """Return a new id: the time to the millisecond, so that ids sort by it, and four random hexadecimal digits."""
    return f"{utc_now():%Y%m%dT%H%M%S%f}"[:-3] + f"z{secrets.token_hex(2)}"
