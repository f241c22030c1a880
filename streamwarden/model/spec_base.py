"""What the parts of a job's spec have in common: strict models, names, sizes."""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict

__all__ = ["Strict", "bytes_of", "check_name", "is_name"]

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_SIZES = {"k": 2**10, "m": 2**20, "g": 2**30}


class Strict(BaseModel):
    """A part of the YAML: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def is_name(value: str) -> bool:
    """Return whether a text may name a job, a table or a source."""
    return _NAME.fullmatch(value) is not None


def check_name(value: str) -> str:
    """Return a name; for validators."""
    if not is_name(value):
        raise ValueError("use lower-case letters, digits and _, starting with a letter, at most 63 characters")
    return value


def bytes_of(size: str) -> int:
    """Return a size such as ``512m`` in bytes."""
    return int(size[:-1]) * _SIZES[size[-1]]
