"""Which folders can be a place's root: all but those with characters that Spark or delta-rs take for something else."""

from __future__ import annotations

import re
from pathlib import Path

from streamwarden.errors import StreamwardenError

__all__ = ["checked_root"]

# Tried with Spark 4.2, Delta 4.4 and delta-rs 1.6: by each of these one of them looks elsewhere, or refuses.
_REFUSED = (
    (re.compile(r"[\x00-\x1f\x7f-\x9f]"), "a control character"),
    (re.compile(r"[\ud800-\udfff]"), "bytes that are not UTF-8"),
    (re.compile(r"%[0-9A-Fa-f]{2}"), "which delta-rs reads as one escaped character"),
    (re.compile(r"[*?\[\]{}]"), "which Spark reads as a pattern"),
    (re.compile(r","), "at which Spark splits a list of folders"),
    (re.compile(r"[\\|^]"), "which delta-rs refuses"),
    (re.compile(r"`"), "which ends a name in Delta's SQL"),
)

_REMEDY = (
    "Rename the folder, or choose another one: `root` of the profile, STREAMWARDEN_ROOT or --root. Blanks, quotes, #,"
    " brackets that are round, accents and a % without two hexadecimal digits behind it are fine."
)


def checked_root(root: Path, profile: str) -> Path:
    """Return a root if everything can be kept below it.

    Parameters
    ----------
    root
        The folder, absolute.
    profile
        Whose it is.

    Raises
    ------
    StreamwardenError
        ``CONFIG_INVALID``, with the first character that stands against it.
    """
    for pattern, why in _REFUSED:
        found = pattern.search(str(root))
        if found is not None:
            what = f"profile {profile}: root: {str(root)!r} has {found[0]!r}, {why}"
            raise StreamwardenError("CONFIG_INVALID", what, remedy=_REMEDY)
    return root
