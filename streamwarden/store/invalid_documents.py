"""Documents that can't be read: damaged ones, and those that a later version of Streamwarden wrote."""

from __future__ import annotations

from pydantic import BaseModel, ValidationError

from streamwarden.errors import StreamwardenError
from streamwarden.storage import Storage
from streamwarden.store.layout import job_of

__all__ = ["invalid", "is_damaged", "is_newer"]

_UNKNOWN = ("extra_forbidden", "literal_error", "enum", "union_tag_invalid")
"""Pydantic's errors about fields and values that a model does not know."""


def is_damaged(storage: Storage, key: str, model: type[BaseModel]) -> bool:
    """Return whether a document is there, and damaged.

    Raises
    ------
    StreamwardenError
        ``DOCUMENT_INVALID`` if a later version wrote it: it is whole, and says more than this version can restore.
    """
    entry = storage.read(key)
    if entry is None:
        return False
    try:
        model.model_validate_json(entry.data)
    except ValidationError as error:
        if is_newer(error):
            raise invalid(key, error) from error
        return True
    return False


def is_newer(error: ValidationError) -> bool:
    """Return whether a document is whole, but a later version of Streamwarden wrote it.

    Then all that is wrong with it are fields or values that this version does not know.
    """
    return all(one["type"] in _UNKNOWN for one in error.errors(include_url=False, include_context=False))


def invalid(key: str, error: ValidationError, *, is_empty: bool = False) -> StreamwardenError:
    """Return the error of a document that can't be read.

    Parameters
    ----------
    key
        Its key.
    error
        What is wrong with it.
    is_empty
        Whether it has no bytes.
    """
    words = "; ".join(f"{'.'.join(map(str, one['loc']))} {one['msg']}".strip() for one in error.errors()[:3])
    if is_newer(error):
        remedy = "Upgrade this installation to the version of the one that wrote it. A repair would lose what it says."
        return StreamwardenError("DOCUMENT_INVALID", f"{key}: a later version wrote it: {words}", remedy=remedy)
    job = job_of(key)
    # None: the catalogue's, for a document that is no job's.
    remedy_of_job = f"`streamwarden repair {job}` shows what it can be restored from; with --yes it does so."
    what = f"{key}: {'it is empty' if is_empty else words}"
    return StreamwardenError("DOCUMENT_INVALID", what, remedy=remedy_of_job if job is not None else None)
