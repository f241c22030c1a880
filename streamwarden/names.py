"""Names that come from outside and become a part of a path or key: types for models, and checks for everything else.

A name may come from a person, a form, YAML, a document or the address of a page. It is checked where it becomes a path
or key: :mod:`streamwarden.store.layout` does so for ROOT. Only ASCII is allowed: two names that look alike are one.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

from streamwarden.errors import StreamwardenError

__all__ = ["Key", "Name", "check_key", "check_name", "is_name", "is_part", "part"]

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
# No leading dot: such files are hidden. No leading dash: a command would read an option.
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


def is_name(value: str) -> bool:
    """Return whether a text may name a job, a table or a source."""
    return _NAME.fullmatch(value) is not None


def check_name(value: str) -> str:
    """Return a name of a job, a table or a source; raise ValueError for any other text."""
    if not is_name(value):
        raise ValueError("use lower-case letters, digits and _, starting with a letter, at most 63 characters")
    return value


def is_part(value: str) -> bool:
    """Return whether a text may be one part of a key: a name, an id, or the name of a document."""
    return _PART.fullmatch(value) is not None


def part(value: str) -> str:
    """Return one part of a key.

    Raises
    ------
    StreamwardenError
        ``NAME_INVALID``: as a part of a path, it could lead elsewhere.
    """
    if not is_part(value):
        # ASCII, and cut: the text may hold anything, and is shown on terminals and pages.
        raise StreamwardenError("NAME_INVALID", ascii(value[:80]))
    return value


def check_key(value: str) -> str:
    """Return a key of several parts without the slashes at its ends; raise ValueError if it could lead elsewhere.

    For keys whose last parts other programs name, such as the files of a checkpoint.
    """
    inner = value.strip("/")
    if "\0" in inner or any(one in ("", ".", "..") for one in inner.split("/")):
        raise ValueError(f"not a key: {value[:200]!r}")
    return inner


Name = Annotated[str, AfterValidator(check_name)]
"""A field with the name of a job, a table or a source."""

Key = Annotated[str, AfterValidator(check_key)]
"""A field with a path below a folder that is known."""
