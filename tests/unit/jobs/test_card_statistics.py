"""card_statistics against plain Python that keeps every trip, in batches of any size and order."""

from __future__ import annotations

from collections import Counter
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs import card_statistics
from spark_jobs.card_statistics import CardStatistics
from streamwarden.driver.job_api import JobSettings
from streamwarden.errors import StreamwardenError
from streamwarden.keyed_state import KEY_ID, KeyedBatch

pytestmark = pytest.mark.unit

TRIP = {KEY_ID: pl.Int64, "zone": pl.Int32, "cents": pl.Int64, "pickup": pl.Int64}
STATE = {KEY_ID: pl.Int64, "zone": pl.Int32, **dict.fromkeys(("visits", "cents", "first", "last"), pl.Int64)}

Trip = tuple[int, int, int, int]
"""Card, zone, cents, pickup."""


def expected(trips: list[Trip], card: int) -> dict[str, Any]:
    own = [trip for trip in trips if trip[0] == card]
    zones = Counter(trip[1] for trip in own)
    return {
        KEY_ID: card,
        "visits": len(own),
        "cents": sum(trip[2] for trip in own),
        "first": min(trip[3] for trip in own),
        "last": max(trip[3] for trip in own),
        "zone": min(zone for zone, visits in zones.items() if visits == max(zones.values())),
    }


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(-5, 9), st.integers(0, 99)),
            min_size=1,
            max_size=6,
        ),
        max_size=5,
    )
)
def test_each_batch_brings_its_cards_up_to_date(batches: list[list[Trip]]) -> None:
    job, so_far = CardStatistics(), list[Trip]()
    state = pl.DataFrame(schema=STATE)
    for trips in batches:
        so_far += trips
        cards = sorted({trip[0] for trip in trips})
        # The layer gives the state of the keys that have events, and replaces it.
        own, others = state.filter(pl.col(KEY_ID).is_in(cards)), state.filter(~pl.col(KEY_ID).is_in(cards))
        events = pl.DataFrame(trips, schema=TRIP, orient="row")
        known = own.with_columns(expires_at=pl.lit(7, pl.Int64), timer_at=pl.lit(None, pl.Int64))
        result = job.update(KeyedBatch(0, pl.DataFrame({KEY_ID: cards}), events, known))
        assert "expires_at" not in result.state.columns, "all zones of a card get a new time to live"
        assert result.output is not None
        assert sorted(result.output.to_dicts(), key=lambda row: row[KEY_ID]) == [
            expected(so_far, card) for card in cards
        ]
        state = pl.concat([others, result.state.select(state.columns)])


def test_a_ttl_is_required() -> None:
    settings = JobSettings(watermark=None, ttl=None, options=None, buckets=8)
    with pytest.raises(StreamwardenError, match=r"card_statistics: state\.ttl"):
        card_statistics.transform(None, settings)  # type: ignore[arg-type]
