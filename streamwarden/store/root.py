"""Check a workspace's root: some characters have another meaning for Spark or delta-rs."""

from __future__ import annotations

import re
from pathlib import Path

from streamwarden.errors import StreamwardenError

__all__ = ["checked_root"]

# Tested with Spark 4.2, Delta 4.4 and delta-rs 1.6: each fails or reads another path for some of these.
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
    """Return the root if it may hold a workspace.

    Parameters
    ----------
    root
        The folder, absolute.
    profile
        The profile's name, for the error.

    Raises
    ------
    StreamwardenError
        ``CONFIG_INVALID``, with the first character that is not allowed.
    """
    for pattern, why in _REFUSED:
        found = pattern.search(str(root))
        if found is not None:
            what = f"profile {profile}: root: {str(root)!r} has {found[0]!r}, {why}"
            raise StreamwardenError("CONFIG_INVALID", what, remedy=_REMEDY)
    return root
