"""One batch of one bucket: which rows the job gets, and what becomes of the rows that it returns. Without Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from streamwarden.errors import StreamwardenError
from streamwarden.keyed_state.chunks import NEVER, BucketState, alive, distinct, integers, number_of_keys
from streamwarden.keyed_state.job import KEY_ID, KeyedBatch, KeyedJob, KeyedResult
from streamwarden.keyed_state.layout import EXPIRES, HASH, TIMER, StateLayout

__all__ = ["CallResult", "Caller"]


@dataclass(frozen=True)
class CallResult:
    """What one batch of a bucket comes to.

    Parameters
    ----------
    fresh
        The rows to store, sorted by hash, with tombstones.
    output
        The key's columns and the job's output, or None.
    keys_added
        Keys that have state now and had none before, less those of the contrary.
    """

    fresh: pa.RecordBatch
    output: pa.RecordBatch | None
    keys_added: int = 0


@dataclass(frozen=True)
class Caller:
    """Calls a job with the rows of one bucket.

    Parameters
    ----------
    job
        The author's logic.
    layout
        The columns of the state.
    ttl
        Milliseconds that state lives after it was last written; None for ever.
    event_time
        A column of timestamps, for a job in event time: a key's state then lives at least `ttl` after its newest event.
    """

    job: KeyedJob
    layout: StateLayout
    ttl: int | None
    event_time: str | None = None

    def update(self, state: BucketState, events: pa.RecordBatch, now: int) -> CallResult:
        """Call the job for the keys that have events.

        Parameters
        ----------
        state
            The bucket's state.
        events
            ``hash``, the key's columns, and the job's input.
        now
            The batch's time in milliseconds.
        """
        hashes = integers(events, HASH)
        touched = distinct(hashes)
        had = state.rows_of(touched)
        known = alive(had, now)
        keys = _Keys.of(self.layout, events, hashes, touched)
        known_ids = keys.ids_of(known)
        # Of another key with the same hash, which has no events: its rows stay as they are.
        others = None
        if (known_ids < 0).any():
            others = known.filter(pa.array(known_ids < 0))
            known, known_ids = known.filter(pa.array(known_ids >= 0)), known_ids[known_ids >= 0]
        batch = KeyedBatch(
            now=now,
            keys=keys.frame(),
            events=_frame(events.drop_columns([HASH, *self.layout.key]), keys.event_ids),
            state=_frame(known.drop_columns([HASH, *self.layout.key]), known_ids),
        )
        result = self._call(self.job.update, batch)
        newest = None if self.event_time is None else _milliseconds(events.column(self.event_time))
        lives_until = self._lives_until(now, keys, newest, known, known_ids)
        fresh = self._rows(result.state, keys, lives_until)
        rows = fresh if others is None else self.layout.sorted_by_hash([fresh, others])
        added = number_of_keys(rows) - number_of_keys(alive(had, 1))
        return CallResult(self._with_tombstones(rows, integers(had, HASH)), self._output(result, keys), added)

    def fire(self, whole: pa.RecordBatch, now: int) -> CallResult:
        """Call the job for the rows whose timer is due.

        Parameters
        ----------
        whole
            All rows that have not expired of keys with a timer that is due, sorted by hash. Other keys may be there.
        now
            The batch's time in milliseconds.
        """
        is_due = integers(whole, TIMER) <= now
        if not is_due.any():
            return CallResult(self.layout.empty(), None)
        due = whole.filter(pa.array(is_due))
        hashes = integers(due, HASH)
        touched = distinct(hashes)
        keys = _Keys.of(self.layout, due, hashes, touched)
        no_events = pl.DataFrame(schema={KEY_ID: pl.Int64})
        plain = due.drop_columns([HASH, *self.layout.key])
        batch = KeyedBatch(now=now, keys=keys.frame(), events=no_events, state=_frame(plain, keys.event_ids))
        result = self._call(self.job.on_timer, batch)
        # A chunk replaces all rows of its keys: also those whose timer is not due are in it.
        kept = whole.filter(pa.array(~is_due & np.isin(integers(whole, HASH), touched)))
        lives_until = self._lives_until(now, keys, None, due, keys.event_ids)
        rows = self.layout.sorted_by_hash([kept, self._rows(result.state, keys, lives_until)])
        added = number_of_keys(rows) - len(touched)
        return CallResult(self._with_tombstones(rows, touched), self._output(result, keys), added)

    def _call(self, function: Callable[[KeyedBatch], KeyedResult], batch: KeyedBatch) -> KeyedResult:
        try:
            result = function(batch)
        except Exception:
            found = _first_failing(function, batch)
            if found is None:
                raise
            key, error = found
            named = ", ".join(f"{name} {value!r}" for name, value in key.items() if name != KEY_ID)
            raise StreamwardenError("JOB_CODE_FAILED", f"key {named}: {type(error).__name__}: {error}") from error
        if not isinstance(result, KeyedResult):
            what = f"{function.__name__} must return a KeyedResult, not {type(result).__name__}"
            raise StreamwardenError("JOB_CODE_FAILED", what)
        _check_columns("state", result.state, (KEY_ID, *self.layout.fields))
        if result.output is not None:
            _check_columns("output", result.output, (KEY_ID, *self.job.output))
        return result

    def _lives_until(
        self,
        now: int,
        keys: _Keys,
        newest: NDArray[np.int64] | None,
        known: pa.RecordBatch,
        known_ids: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Return for each key until when rows live that the job gives no other time."""
        if self.ttl is None:
            return np.full(len(keys.hashes), NEVER)
        found = np.full(len(keys.hashes), now + self.ttl)
        if self.event_time is not None:
            # Events are ahead of the watermark, by days in a backlog, and the first batch has none at all.
            if newest is not None:
                np.maximum.at(found, keys.event_ids, newest + self.ttl)
            # A late event does not shorten the life of what a newer one has left.
            before = integers(known, EXPIRES)
            np.maximum.at(found, known_ids, np.where(before == NEVER, 0, before))
        return found

    def _rows(self, frame: pl.DataFrame, keys: _Keys, lives_until: NDArray[np.int64]) -> pa.RecordBatch:
        rows = _record_batch(frame)
        ids = rows.column(KEY_ID).cast(pa.int64()).to_numpy(zero_copy_only=False)
        columns = [
            pa.array(keys.hashes[ids]),
            *(column.take(pa.array(ids)) for column in keys.columns),
            _times(rows, EXPIRES, lives_until[ids]),
            _times(rows, TIMER, np.full(len(ids), NEVER)),
            *(rows.column(name).cast(one.type) for name, one in self.layout.fields.items()),
        ]
        made = pa.RecordBatch.from_arrays(columns, schema=self.layout.schema)
        return self.layout.sorted_by_hash([made])

    def _output(self, result: KeyedResult, keys: _Keys) -> pa.RecordBatch | None:
        if result.output is None or not len(result.output):
            return None
        rows = _record_batch(result.output)
        ids = pa.array(rows.column(KEY_ID).cast(pa.int64()).to_numpy(zero_copy_only=False))
        named = {name: column.take(ids) for name, column in zip(self.layout.key, keys.columns, strict=True)}
        named |= {name: rows.column(name).cast(type_) for name, type_ in self.job.output.items()}
        return pa.RecordBatch.from_arrays(list(named.values()), names=list(named))

    def _with_tombstones(self, rows: pa.RecordBatch, had: NDArray[np.int64]) -> pa.RecordBatch:
        # Both are sorted.
        own = integers(rows, HASH)
        at = np.searchsorted(own, had)
        removed = distinct(had[own[np.minimum(at, len(own) - 1)] != had] if len(own) else had)
        number = len(removed)
        if not number:
            return rows
        given = {HASH: pa.array(removed), EXPIRES: _full(number, 0), TIMER: _full(number, NEVER)}
        columns = [given.get(one.name, pa.nulls(number, one.type)) for one in self.layout.schema]
        return self.layout.sorted_by_hash([rows, pa.RecordBatch.from_arrays(columns, schema=self.layout.schema)])


@dataclass(frozen=True)
class _Keys:
    """The keys of one call: their hashes and columns by ``key_id``, and the id of each row that they come from."""

    layout: StateLayout
    hashes: NDArray[np.int64]
    columns: list[pa.Array]
    event_ids: NDArray[np.int64]
    most: int = 1
    """Keys with the same hash, at most."""

    @classmethod
    def of(
        cls, layout: StateLayout, rows: pa.RecordBatch, hashes: NDArray[np.int64], touched: NDArray[np.int64]
    ) -> _Keys:
        ids = np.searchsorted(touched, hashes)
        first = np.empty(len(touched), np.int64)
        first[ids[::-1]] = np.arange(len(ids))[::-1]
        keys = cls(layout, touched, [rows.column(name).take(pa.array(first)) for name in layout.key], ids)
        if (keys.ids_of(rows) >= 0).all():
            return keys
        # Two keys with one hash. Rare, so this may be slow.
        frame = pl.DataFrame({HASH: hashes, **{name: pl.from_arrow(rows.column(name)) for name in layout.key}})
        numbered = frame.unique(maintain_order=True).sort(HASH, maintain_order=True).with_row_index(KEY_ID)
        joined = frame.join(numbered, on=[HASH, *layout.key], how="left", nulls_equal=True, maintain_order="left")
        columns = [numbered[name].to_arrow().cast(layout.key[name]) for name in layout.key]
        own = numbered[HASH].to_numpy()
        most = int(numbered.group_by(HASH).len()["len"].max())  # type: ignore[arg-type]
        return cls(layout, own, columns, joined[KEY_ID].cast(pl.Int64).to_numpy(), most)

    def ids_of(self, rows: pa.RecordBatch) -> NDArray[np.int64]:
        """Return the id of each row's key, -1 for a key that is none of these."""
        hashes = integers(rows, HASH)
        found = np.full(len(hashes), -1, np.int64)
        if not len(self.hashes):
            return found
        first = np.searchsorted(self.hashes, hashes, "left")
        for shift in range(self.most):
            at = np.minimum(first + shift, len(self.hashes) - 1)
            same = self.hashes[at] == hashes
            for name, column in zip(self.layout.key, self.columns, strict=True):
                same &= _equal(rows.column(name), column.take(pa.array(at)))
            found[same] = at[same]
        return found

    def frame(self) -> pl.DataFrame:
        columns = {name: pl.from_arrow(column) for name, column in zip(self.layout.key, self.columns, strict=True)}
        return pl.DataFrame({KEY_ID: np.arange(len(self.hashes)), **columns})


def _first_failing(
    function: Callable[[KeyedBatch], KeyedResult], batch: KeyedBatch
) -> tuple[dict[str, object], Exception] | None:
    """Return a key for which the job fails alone, and its error; None if no single key makes it fail."""
    while len(batch.keys) > 1:
        half = len(batch.keys) // 2
        for part in (_part(batch, 0, half), _part(batch, half, len(batch.keys))):
            try:
                function(part)
            except Exception:
                batch = part
                break
        else:
            return None
    try:
        function(batch)
    except Exception as error:
        return batch.keys.row(0, named=True), error
    return None


def _part(batch: KeyedBatch, begin: int, end: int) -> KeyedBatch:
    def cut(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.filter(pl.col(KEY_ID).is_between(begin, end, closed="left")).with_columns(pl.col(KEY_ID) - begin)

    keys = cut(batch.keys)
    return KeyedBatch(now=batch.now, keys=keys, events=cut(batch.events), state=cut(batch.state))


def _frame(rows: pa.RecordBatch, ids: NDArray[np.int64]) -> pl.DataFrame:
    numbers = pl.Series(KEY_ID, ids, dtype=pl.Int64)
    if not rows.num_columns:
        # Without columns a frame has no rows either.
        return pl.DataFrame([numbers])
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    return frame.insert_column(0, numbers)


def _record_batch(frame: pl.DataFrame) -> pa.RecordBatch:
    # Not views of strings, which a chunk's schema does not have.
    table = frame.to_arrow(compat_level=pl.CompatLevel.oldest()).combine_chunks()
    if not table.num_rows:
        return pa.RecordBatch.from_arrays([pa.array([], one.type) for one in table.schema], schema=table.schema)
    return table.to_batches()[0]


def _times(rows: pa.RecordBatch, name: str, missing: NDArray[np.int64]) -> pa.Array:
    if name not in rows.schema.names:
        return pa.array(missing)
    return pc.coalesce(rows.column(name).cast(pa.int64()), pa.array(missing))


def _milliseconds(times: pa.Array) -> NDArray[np.int64]:
    """Return a column of timestamps in milliseconds since the epoch; nulls as 0."""
    # Rounded down, as Spark compares.
    whole = pc.fill_null(times.cast(pa.timestamp("ms"), safe=False).cast(pa.int64()), 0)
    found: NDArray[np.int64] = whole.to_numpy(zero_copy_only=False)
    return found


def _check_columns(what: str, frame: pl.DataFrame, names: Sequence[str]) -> None:
    missing = [name for name in names if name not in frame.columns]
    if missing:
        there = f"; it has {', '.join(frame.columns)}"
        raise StreamwardenError("JOB_CODE_FAILED", f"the returned {what} lacks {', '.join(missing)}{there}")


def _full(number: int, value: int) -> pa.Array:
    return pa.array(np.full(number, value, np.int64))


def _equal(left: pa.Array, right: pa.Array) -> NDArray[np.bool_]:
    same = pc.fill_null(pc.equal(left, right), False)
    if left.null_count or right.null_count:
        same = pc.or_(same, pc.and_(left.is_null(), right.is_null()))
    equal: NDArray[np.bool_] = same.to_numpy(zero_copy_only=False)
    return equal
