"""Records of driver hosts: who starts drivers for a place, and which drivers they were asked for."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from streamwarden.model.process_ref import ProcessRef
from streamwarden.model.record import Record

__all__ = ["DriverHost", "DriverStart"]


class DriverHost(Record):
    """A driver host's sign of life."""

    name: str
    process: ProcessRef
    since: datetime
    at: datetime = Field(description="Its last look at the requests.")
    drivers: list[str] = Field(default=[], description="The jobs whose drivers it runs.")
    most: int | None = Field(default=None, description="How many drivers it takes at once; None: any number.")


class DriverStart(Record):
    """A request for a driver, and what became of it."""

    job: str
    incarnation: str
    at: datetime
    host: str | None = Field(default=None, description="The driver host that has taken it.")
    taken: datetime | None = None
    process: ProcessRef | None = Field(default=None, description="The driver's process, once it was started.")
    kill: bool = Field(default=False, description="Whether the host is to kill it.")
    ended: datetime | None = Field(default=None, description="When its host found that its process was gone.")
