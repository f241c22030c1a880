"""What the parts of a job's spec have in common: strict models and sizes."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["Strict", "bytes_of"]

_SIZES = {"k": 2**10, "m": 2**20, "g": 2**30}


class Strict(BaseModel):
    """A part of the YAML: unknown keys are refused.

    Documents hold specs, and an earlier version refuses a spec with a field that it does not know. So a field that is
    added is left out while it has its default: ``Field(default=…, exclude_if=…)``. Then an upgrade can be rolled back
    as long as nobody uses the field.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)


def bytes_of(size: str) -> int:
    """Return a size such as ``512m`` in bytes."""
    return int(size[:-1]) * _SIZES[size[-1]]
