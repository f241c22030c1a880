"""Rows that meet the shipped expectations, and rows of which each breaks some: for every engine that judges rows."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from spark_jobs.schemas import TRIPS
from streamwarden.quality import load_suites

EXPECTATIONS = Path(__file__).resolve().parents[1] / "expectations"
SUITES = {
    suite.name: suite.only(one for one in suite.expectations if one.meta.recent is None and not one.meta.tables)
    for suite in load_suites(EXPECTATIONS)
}
"""Without the rules about recent rows and other tables: tests/unit/quality/test_planted_faults.py has those."""
NAN, INFINITY = float("nan"), float("inf")


def at(text):
    return datetime.fromisoformat(f"2023-03-06T{text}+00:00")


def trip(number, **over):
    """A valid trip; every second one is a reversal, every eighth lacks the optional columns."""
    optional = number % 8 != 0
    sign = -1.0 if number % 2 else 1.0
    return {
        "VendorID": 2,
        "lpep_pickup_datetime": at("08:00:00") + timedelta(minutes=number),
        "lpep_dropoff_datetime": at("08:00:00") + timedelta(minutes=number + number % 3),
        "store_and_fwd_flag": "N" if optional else None,
        "RatecodeID": 1 if optional else None,
        "PULocationID": 74 + number % 100,
        "DOLocationID": 265,
        "passenger_count": 1 if optional else None,
        "trip_distance": 1.5,
        "fare_amount": 10.0 * sign,
        "extra": 0.5,
        "mta_tax": 0.5,
        "tip_amount": 0.0,
        "tolls_amount": 0.0,
        "ehail_fee": None,
        "improvement_surcharge": 0.3,
        "total_amount": 11.3 * sign,
        "payment_type": 1 if optional else None,
        "trip_type": 1 if optional else None,
        "congestion_surcharge": 0.0 if optional else None,
        "cbd_congestion_fee": None,
        "card_id": f"card-{number:02d}",
        "source_file": "trips-1.parquet",
        "source_row": number,
        **over,
    }


def window(number, **over):
    start = at("08:00:00") + timedelta(hours=number)
    return {
        "window_start": start,
        "window_end": start + timedelta(hours=1),
        "zone_id": 74,
        "trips": 3,
        "revenue": Decimal("-1.20"),
        "average_fare": 9.5,
        "is_final": number < 3,
        **over,
    }


def session(number, **over):
    start = at("08:00:00") + timedelta(minutes=41 * number)
    return {
        "card_id": "card-1",
        "session_start": start,
        "session_end": start + timedelta(minutes=10),
        "trips": 2,
        "total_amount": Decimal("-1.20"),
        "zones": [1, 265],
        "status": "closed" if number else "open",
        **over,
    }


SCHEMAS: dict[str, Any] = {
    "trips": TRIPS,
    "zone_windows": (
        "window_start timestamp, window_end timestamp, zone_id int, trips bigint, revenue decimal(18,2),"
        " average_fare double, is_final boolean"
    ),
    "card_sessions": (
        "card_id string, session_start timestamp, session_end timestamp, trips bigint, total_amount decimal(18,2),"
        " zones array<int>, status string"
    ),
}
GOOD = {
    "trips": [trip(number) for number in range(16)],
    "zone_windows": [window(number) for number in range(4)],
    "card_sessions": [session(number) for number in range(4)],
}


@dataclass
class Bad:
    """Rows that are bad in one way, and how many rows each expectation must find in them; no other may find any."""

    fails: dict[str, int]
    rows: list[dict[str, Any]]


def bad(expectation, *changes, also=()):
    return Bad({expectation: len(changes), **{name: len(changes) for name in also}}, list(changes))


def twice(expectation, change, also=None):
    """The same row twice, the second time with other values outside the key."""
    return Bad({expectation: 2, **(also or {})}, [{}, {"number": 0, **change}])


BEFORE = at("07:00:00")
# Without the two that another expectation watches too.
AMOUNTS = [
    "extra",
    "mta_tax",
    "tip_amount",
    "tolls_amount",
    "ehail_fee",
    "improvement_surcharge",
    "total_amount",
    "congestion_surcharge",
    "cbd_congestion_fee",
]
BAD_ROWS = {
    "trips": [
        twice("trips.key.unique", {"source_row": 0, "source_file": "trips-2.parquet"}),
        twice("trips.origin.unique", {"total_amount": 1.0}),
        *(
            bad(f"trips.{column}.not_null", {column: None})
            for column in [
                "VendorID",
                "lpep_pickup_datetime",
                "lpep_dropoff_datetime",
                "PULocationID",
                "DOLocationID",
                "total_amount",
                "card_id",
                "source_file",
                "source_row",
            ]
        ),
        bad("trips.PULocationID.zone", *({"PULocationID": zone} for zone in (0, 266, -1))),
        bad("trips.DOLocationID.zone", *({"DOLocationID": zone} for zone in (0, 266, -1))),
        bad("trips.dropoff.after_pickup", {"lpep_dropoff_datetime": BEFORE}),
        bad("trips.amounts.finite", *({column: -INFINITY} for column in AMOUNTS)),
        bad("trips.amounts.finite", {"fare_amount": NAN}, also=["trips.fare_amount.plausible"]),
        bad("trips.amounts.finite", {"trip_distance": INFINITY}, also=["trips.trip_distance.plausible"]),
        bad("trips.lpep_pickup_datetime.plausible", {"lpep_pickup_datetime": datetime(2009, 1, 1, tzinfo=UTC)}),
        bad("trips.VendorID.known", {"VendorID": 3}),
        bad("trips.RatecodeID.known", {"RatecodeID": 7}),
        bad("trips.payment_type.known", {"payment_type": 7}),
        bad("trips.trip_type.known", {"trip_type": 3}),
        bad("trips.store_and_fwd_flag.known", {"store_and_fwd_flag": "n"}),
        bad("trips.passenger_count.plausible", {"passenger_count": 10}),
        bad("trips.trip_distance.plausible", {"trip_distance": 100.5}, {"trip_distance": -0.5}),
        bad("trips.fare_amount.plausible", {"fare_amount": -500.5}, {"fare_amount": 500.5}),
    ],
    "zone_windows": [
        twice("zone_windows.key.unique", {"trips": 5}),
        *(
            bad(f"zone_windows.{column}.not_null", {column: None})
            for column in ["window_start", "window_end", "zone_id", "trips", "revenue", "average_fare", "is_final"]
        ),
        bad("zone_windows.zone_id.zone", {"zone_id": 0}, {"zone_id": 266}),
        bad("zone_windows.trips.positive", {"trips": 0}),
        bad("zone_windows.window.one_hour", {"window_end": at("23:00:00")}),
        bad("zone_windows.window.on_the_hour", {"window_start": at("05:30:00"), "window_end": at("06:30:00")}),
        bad("zone_windows.average_fare.finite", {"average_fare": NAN}, {"average_fare": -INFINITY}),
    ],
    "card_sessions": [
        twice("card_sessions.key.unique", {"trips": 5}, {"card_sessions.gap": 1}),
        *(
            bad(f"card_sessions.{column}.not_null", {column: None})
            for column in ["card_id", "session_start", "session_end", "trips", "total_amount", "status"]
        ),
        bad("card_sessions.end.after_start", {"session_end": BEFORE}),
        bad("card_sessions.trips.positive", {"trips": 0}),
        bad("card_sessions.status.known", {"status": "Open"}),
        bad("card_sessions.zones.valid", *({"zones": zones} for zones in ([], None, [1, 266], [None]))),
        # The next session of the card starts 30 minutes after this one's end, or before it.
        Bad({"card_sessions.gap": 1}, [{"session_end": at("08:11:00"), "number": 0}, {"number": 1}]),
        Bad({"card_sessions.gap": 1}, [{"session_end": at("09:00:00"), "number": 0}, {"number": 1}]),
    ],
}


def bad_rows(table):
    rows = list(GOOD[table])
    for group, case in enumerate(BAD_ROWS[table], 1):
        related = any("number" in change for change in case.rows)
        for index, change in enumerate(case.rows):
            number = change.get("number", index)
            values = {name: value for name, value in change.items() if name != "number"}
            if table == "trips":
                # Never a multiple of 8: the optional columns are there.
                rows.append(trip(1000 * group + 8 * number + 1, **values))
            elif table == "zone_windows":
                rows.append(window(100 * group + number, **values))
            else:
                # Sessions of one card are compared with each other.
                card = f"bad-{group}" if related else f"bad-{group}-{index}"
                rows.append(session(number, **{"card_id": card, **values}))
    return rows


@dataclass
class Change:
    """What is wrong with a table as a whole, and what must fail for it. Those that then can't be evaluated say so."""

    fails: set[str]
    columns: dict[str, Any] = field(default_factory=dict)
    drop: str | None = None
    unevaluated: set[str] = field(default_factory=set)

    @property
    def table(self):
        return next(iter(self.fails)).split(".")[0]


OPTIONAL = ["passenger_count", "payment_type", "RatecodeID"]
CHANGES = [
    Change({"trips.columns"}, drop="ehail_fee", unevaluated={"trips.amounts.finite"}),
    Change(
        {"trips.lpep_pickup_datetime.type", "trips.lpep_dropoff_datetime.type"},
        {"lpep_pickup_datetime": "timestamp_ntz", "lpep_dropoff_datetime": "timestamp_ntz"},
    ),
    Change({f"trips.{name}.not_null" for name in OPTIONAL}, dict.fromkeys(OPTIONAL)),
    Change({"zone_windows.columns"}, drop="is_final", unevaluated={"zone_windows.is_final.not_null"}),
    Change(
        {"zone_windows.window_start.type", "zone_windows.revenue.type"},
        {"window_start": "timestamp_ntz", "revenue": "double"},
    ),
    Change(
        {"card_sessions.columns"},
        drop="status",
        unevaluated={"card_sessions.status.known", "card_sessions.status.not_null"},
    ),
    Change(
        {"card_sessions.session_start.type", "card_sessions.total_amount.type"},
        {"session_start": "timestamp_ntz", "total_amount": "double"},
    ),
]

ROW_EXPECTATIONS = sorted({name for cases in BAD_ROWS.values() for case in cases for name in case.fails})
