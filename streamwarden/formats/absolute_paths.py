"""Make the paths in a Delta log's actions absolute, so that another log can name the same files.

Source: the Delta transaction log protocol. A path in an action is a URI: relative to the table, or absolute. Shallow
clones have absolute ones.
"""

from __future__ import annotations

import base64
import re
import urllib.parse
import uuid
from typing import Any

__all__ = ["absolute_uri", "with_absolute_paths"]

_KINDS = ("add", "remove", "cdc")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:/")
# What RFC 3986 allows in a path besides letters and digits. All else is escaped: Spark reads paths as Java's URIs.
_SAFE = "/:@!$&'()*+,;=~-._"
_Z85_TO_B85 = str.maketrans(
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~",
)


def absolute_uri(folder: str) -> str:
    """Return a folder's URI as a Delta log writes it.

    Parameters
    ----------
    folder
        ``file:/FOLDER`` or ``s3a://BUCKET/FOLDER``, not escaped.
    """
    scheme, _, path = folder.partition(":")
    return f"{scheme}://{urllib.parse.quote('/' + path.lstrip('/') if scheme == 'file' else path[2:], safe=_SAFE)}"


def with_absolute_paths(action: dict[str, Any], base: str) -> dict[str, Any]:
    """Return an action with the absolute paths of its file and of the file's deletion vector.

    Parameters
    ----------
    base
        The table's :func:`absolute_uri`.
    """
    for kind in _KINDS:
        if kind in action:
            file = {**action[kind], "path": _absolute(action[kind]["path"], base)}
            vector = file.get("deletionVector")
            if vector is not None and vector["storageType"] == "u":
                file["deletionVector"] = {**vector, "storageType": "p", "pathOrInlineDv": _vector(vector, base)}
            return {kind: file}
    return action


def _absolute(path: str, base: str) -> str:
    if not _SCHEME.match(path):
        return f"{base}/{path}"
    # As Java writes the URI of a local file. delta-rs reads the other form only.
    return f"file:///{path[6:]}" if path.startswith("file:/") and not path.startswith("file://") else path


def _vector(vector: dict[str, Any], base: str) -> str:
    """Return the absolute path of a deletion vector's file, of which the log has the UUID in Z85."""
    text = vector["pathOrInlineDv"]
    folder, name = text[:-20], uuid.UUID(bytes=base64.b85decode(text[-20:].translate(_Z85_TO_B85)))
    return f"{base}/{folder + '/' if folder else ''}deletion_vector_{name}.bin"
