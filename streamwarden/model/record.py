"""What all control documents have in common."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from streamwarden.errors import StreamwardenError, is_code
from streamwarden.redaction import redacted

__all__ = ["Decided", "ErrorInfo", "ErrorText", "Record", "utc_now"]

ErrorText = Annotated[str, AfterValidator(redacted)]
"""The text of another library's error: secrets of the environment are hidden when the record is made."""


def utc_now() -> datetime:
    """Return the current time in UTC, with its zone. All control documents use this clock."""
    return datetime.now(UTC)


class Record(BaseModel):
    """A document, or a part of one: JSON on disk."""

    # Unknown fields are ignored: a later version may write more of them. An unknown value of an enum or Literal is not
    # ignored, nor is an unknown field of a job's spec: see docs/upgrading.md. A field that is added needs a default, as
    # documents of earlier versions lack it. Frozen, since readers of an unchanged document may share one object.
    model_config = ConfigDict(extra="ignore", frozen=True)


class ErrorInfo(Record):
    """An error as data: code and text of the catalogue, and a traceback if there is one."""

    code: str
    what: str
    remedy: str
    retryable: bool
    traceback: str = ""

    def to_exception(self) -> StreamwardenError:
        """Return the error as an exception."""
        # Another version may know more codes.
        code = self.code if is_code(self.code) else "DRIVER_FAILED"
        return StreamwardenError(code, self.what, remedy=self.remedy, retryable=self.retryable)

    @classmethod
    def of(cls, error: StreamwardenError, traceback: str = "") -> ErrorInfo:
        """Create the record from an exception."""
        return cls(
            code=error.code,
            what=error.what,
            remedy=error.remedy,
            retryable=error.retryable,
            traceback=redacted(traceback),
        )


class Decided(Record):
    """A document that decides what runs. Operations change it only by compare-and-swap."""

    takeovers: int = Field(
        default=0,
        description="Grows when an operation is taken over, so that its previous process fails its compare-and-swap.",
    )
