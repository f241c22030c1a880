"""What a serving store does, whatever keeps it.

A write carries the epoch of the driver's lease and the batch. A driver with an older epoch writes nothing once a later
one has begun, and a key takes no batch that is older than its own. So a batch that is tried again changes nothing
wrongly, and neither does a driver that lost its lease and still writes. A deleted key leaves a value without content:
so an older write does not bring it back.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

__all__ = ["Entry", "Position", "Served", "ServingStore", "StoreMoved", "key_text"]

# As Spark's JSON of a key's columns, see `streamwarden.driver.pipeline.serving`.
_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"


@dataclass(frozen=True)
class Entry:
    """A key with its value, both JSON; a value of None deletes the key."""

    key: str
    value: str | None


@dataclass(frozen=True)
class Position:
    """Up to where a store has followed its job.

    Parameters
    ----------
    epoch
        Of the lease of the driver that wrote last. It grows with every driver, also when the job rolls back.
    generation, batch
        The job's generation, and its newest batch there. A batch of -1: none yet.
    complete
        False while a store is being filled from the table: a killed filling is begun anew.
    """

    epoch: int
    generation: int
    batch: int
    complete: bool = True


@dataclass(frozen=True)
class Served:
    """A value, and how old it is.

    Parameters
    ----------
    value
        The row's columns without its key.
    generation, batch
        The batch that wrote it, or up to which the store was filled from the table.
    watermark
        The watermark that the batch began with; None without one.
    """

    value: Mapping[str, Any]
    generation: int
    batch: int
    watermark: datetime | None


class StoreMoved(Exception):
    """The store is not where its writer left it: it was emptied, lost its newest batches, or has a later writer."""


class ServingStore(ABC):
    """The values of one table."""

    @abstractmethod
    def position(self) -> Position | None:
        """Return up to where the store has followed its job; None for a store that was never written."""

    @abstractmethod
    def begin(self, position: Position) -> None:
        """Set the position; from now on older epochs write nothing.

        Raises
        ------
        StoreMoved
            If the store has a later epoch.
        """

    @abstractmethod
    def write(
        self, entries: Iterable[Entry], after: Position, position: Position, *, watermark_ms: int, now_ms: int
    ) -> int:
        """Write a batch, and then its position; return how many entries were accepted.

        Parameters
        ----------
        entries
            Each key at most once.
        after
            The position that this writer has set last.
        position
            The batch.
        watermark_ms
            The batch's watermark; 0 for none.
        now_ms
            The time, from which values expire.

        Raises
        ------
        StoreMoved
            If the store's position is not `after`.
        """

    @abstractmethod
    def drop_older(self, position: Position) -> int:
        """Remove the values whose epoch and batch are older; return how many."""

    @abstractmethod
    def get(self, key: str, *, now_ms: int) -> Served | None:
        """Return a key's value, or None if there is none or it has expired."""

    @abstractmethod
    def clear(self) -> None:
        """Remove everything, the position included."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""


def key_text(columns: Mapping[str, Any]) -> str:
    """Return a key's columns as the JSON by which its value is found.

    Parameters
    ----------
    columns
        In the order of the sink's ``keys``. A ``datetime`` without a zone counts as UTC. A ``Decimal`` has as many
        digits as its column: ``Decimal("12.30")``.
    """
    plain = {name: _plain(value) for name, value in columns.items()}
    return json.dumps(plain, separators=(",", ":"), ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return moment.astimezone(UTC).strftime(_TIME)
    if isinstance(value, date):
        return value.isoformat()
    return format(value, "f") if isinstance(value, Decimal) else value


def served(value: str, generation: int, batch: int, watermark_ms: int) -> Served:
    """Return a stored value as readers get it."""
    moment = datetime.fromtimestamp(watermark_ms / 1000, UTC) if watermark_ms > 0 else None
    return Served(json.loads(value), generation, batch, moment)
