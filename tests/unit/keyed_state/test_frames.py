"""The helpers of keyed state against plain Python."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamwarden.keyed_state import KEY_ID, session_ids, union_of_lists

pytestmark = pytest.mark.unit

INTERVALS = st.lists(st.tuples(st.integers(0, 3), st.integers(-50, 50), st.integers(0, 10)), max_size=30)


# The second unit: times of all keys beside each other do not fit into 64 bits.
@given(rows=INTERVALS, gap=st.integers(0, 12), unit=st.sampled_from([1, 2**56]))
def test_session_ids(rows: list[tuple[int, int, int]], gap: int, unit: int) -> None:
    gap, rows = gap * unit, [(key, a * unit, b * unit) for key, a, b in rows]
    frame = pl.DataFrame(
        {KEY_ID: [key for key, _, _ in rows], "a": [a for _, a, _ in rows], "b": [a + b for _, a, b in rows]},
        schema={KEY_ID: pl.Int64, "a": pl.Int64, "b": pl.Int64},
    )
    expected, session, last = [0] * len(rows), -1, None
    for place in sorted(range(len(rows)), key=lambda place: rows[place][:2]):
        key, begin, length = rows[place]
        if last is None or last[0] != key or begin - last[1] > gap:
            session, last = session + 1, (key, begin + length)
        last = (key, max(last[1], begin + length))
        expected[place] = session
    assert session_ids(frame, start="a", end="b", gap=gap).to_list() == expected


@given(rows=st.lists(st.tuples(st.integers(0, 4), st.lists(st.none() | st.integers(-3, 300), max_size=4)), max_size=20))
def test_union_of_lists(rows: list[tuple[int, list[int | None]]]) -> None:
    ids = pl.Series([row[0] for row in rows], dtype=pl.Int64)
    values = pl.Series([row[1] for row in rows], dtype=pl.List(pl.Int32))
    expected = [
        sorted({value for of, some in rows if of == one for value in some if value is not None}) for one in range(5)
    ]
    assert union_of_lists(ids, values, 5).to_list() == expected
