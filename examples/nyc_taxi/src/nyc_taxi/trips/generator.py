"""Generated trips, modelled on real green-taxi trips.

Realistic (``shape.toml``): trips by hour of the week, zones, durations, distances, fares, payment, the order of rows in
a file, and errors in some of them.

Not realistic: only trips within one zone relate start and end; distances, fares and tips don't depend on zones. There
are no holidays, weather or strikes, and no daylight saving, so the skipped hour has trips. This is not a model of
taxis, but a source of trips with realistic skew, disorder and dirt.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyc_taxi.trips.columns import SCHEMAS, SchemaName
from nyc_taxi.trips.draws import Draws
from streamwarden.errors import StreamwardenError

__all__ = ["TRIPS_A_WEEK", "GeneratorOptions", "InvalidRows", "generate", "load_shape"]

TRIPS_A_WEEK = 16_423
"""As in the week of 2023-03-06, the densest of its quarter and the default period."""

_HOUR = 3_600_000_000
_SECOND = 1_000_000
# 1970-01-01 was a Thursday.
_EPOCH_HOUR_OF_WEEK = 3 * 24

# Rows of a real file lag the latest earlier pickup by 34 minutes (median) and 70-75 minutes (ninth decile).
_DISORDER = 85 * 60 * _SECOND

# Real trips with unset clocks, seen in 2023-01 and 2023-02.
_UNSET_CLOCKS = (datetime(2008, 12, 31, 23, 2, 29), datetime(2009, 1, 1, 20, 21, 27))
_UNSET_CLOCKS_FROM = 100

_CBD_FEE, _CBD_SHARE = 0.75, 0.09  # measured in 2025-11

Columns = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class InvalidRows:
    """Numbers of rows that are damaged beyond the TLC's errors, in addition to the trips. Default none."""

    dropoff_before_pickup: int = 0
    nan_amount: int = 0
    zone_out_of_range: int = 0
    null_pickup: int = 0

    @classmethod
    def each(cls, count: int) -> InvalidRows:
        """Return the same number of every kind."""
        return cls(**{kind.name: count for kind in fields(cls)})

    @property
    def total(self) -> int:
        """Number of damaged rows of all kinds."""
        return sum(getattr(self, kind.name) for kind in fields(self))


@dataclass(frozen=True)
class GeneratorOptions:
    """Options of the generator.

    Parameters
    ----------
    start, end
        Pickups are in ``[start, end)``, except erroneous ones. Default: the dense week 2023-03-06 to 2023-03-13.
        Without time zone, as in TLC files: local time of New York.
    trips
        Number of trips without damaged rows. None: as many as green taxis had in early 2023, 16,423 a week.
    seed
        Equal options and seed give the same table, byte by byte.
    schema
        ``"2023"``, or ``"2025"`` with ``cbd_congestion_fee``.
    dirt
        Whether to add errors of TLC files, at about their real rates. These are pickups far outside the period,
        reversals, zero fares and distances, distances over 100 miles, and trips of about 24 hours. From
        100 trips on, at least one pickup is of 2008 and one of 2009. Off is for tests. Rows without passengers and
        payment, and zones 264 and 265, are frequent and always present.
    invalid
        Rows that no valid file has, distributed among the others.
    """

    start: datetime = datetime(2023, 3, 6)
    end: datetime = datetime(2023, 3, 13)
    trips: int | None = None
    seed: int = 0
    schema: SchemaName = "2023"
    dirt: bool = True
    invalid: InvalidRows = field(default_factory=InvalidRows)

    def __post_init__(self) -> None:
        def refuse(what: str) -> None:
            raise StreamwardenError("REPLAY_OPTIONS_INVALID", f"generator: {what}")

        if self.start.tzinfo is not None or self.end.tzinfo is not None:
            refuse("start and end have a time zone; give New York's clock time without one")
        if self.end <= self.start:
            refuse(f"end {self.end} is not after start {self.start}")
        if self.trips is not None and self.trips < 0:
            refuse(f"trips is {self.trips}")
        if any(getattr(self.invalid, kind.name) < 0 for kind in fields(self.invalid)):
            refuse("a number of invalid rows is negative")
        if self.schema not in SCHEMAS:
            refuse(f"schema is {self.schema!r}, not one of {', '.join(SCHEMAS)}")


@cache
def load_shape() -> dict[str, dict[str, Any]]:
    """Return the measured figures of ``shape.toml``."""
    return tomllib.loads(files("nyc_taxi.trips").joinpath("shape.toml").read_text(encoding="utf-8"))


def generate(options: GeneratorOptions | None = None) -> pa.Table:
    """Generate trips.

    Returns
    -------
    pyarrow.Table
        In the order of a TLC file: roughly by pickup, rows without passengers and payment at the end. Trip keys are
        unique. Without ``card_id``, which the replay adds.
    """
    options = options or GeneratorOptions()
    draws = Draws(options.seed)
    shape = load_shape()
    hours, weights = _hours(options, shape["clock"]["hour_of_week"])
    wanted = options.trips
    if wanted is None:
        wanted = round(weights.sum() * TRIPS_A_WEEK / sum(shape["clock"]["hour_of_week"]))
    # Reversals are additional rows, made of other rows, so there are fewer of the others.
    reversals = round(wanted * shape["dirt"]["reversal"]) if options.dirt else 0
    count = wanted - reversals + options.invalid.total

    place = draws.pick("hour", count, weights)
    pickup = hours[place, 0] + np.floor(draws.uniform("pickup", count) * (hours[place, 1] - hours[place, 0]))
    pickup = pickup.astype(np.int64)
    unmetered = draws.chance("unmetered", count, shape["dirt"]["unmetered"])
    columns = _trips(draws, pickup, unmetered, shape)
    levied = draws.chance("cbd", count, _CBD_SHARE if options.schema == "2025" else 0.0)
    columns["cbd_congestion_fee"] = np.where(levied, _CBD_FEE, 0.0)
    order = pickup + (draws.uniform("order", count) * _DISORDER).astype(np.int64)
    columns["order"] = np.where(unmetered, pickup, order)

    rows = np.arange(count)
    charges = np.zeros(0, dtype=np.int64)
    if options.dirt:
        _dirty(draws, columns, shape)
        charges = draws.some("charges", rows[~unmetered], reversals)
        _charge(draws, columns, charges, shape)
        _move_out_of_period(draws, columns, np.setdiff1d(rows, charges), shape)
    _total(columns)
    _make_keys_unique(columns)
    nulls = _damage(draws, columns, options.invalid, np.setdiff1d(rows, charges))
    columns |= {name: np.concatenate([values, _reversed(name, values[charges])]) for name, values in columns.items()}
    order = np.lexsort((columns["order"], columns["unmetered"]))
    return _table({name: values[order] for name, values in columns.items()}, np.isin(order, nulls), options.schema)


def _hours(options: GeneratorOptions, profile: list[float]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return the period's hours as [from, to) in microseconds, and the expected trips of each."""
    start, end = _micros(options.start), _micros(options.end)
    first = np.arange(start // _HOUR, -(-end // _HOUR))
    hours = np.stack([np.maximum(first * _HOUR, start), np.minimum((first + 1) * _HOUR, end)], axis=1)
    weights = np.asarray(profile)[(first + _EPOCH_HOUR_OF_WEEK) % 168]
    return hours, weights * (hours[:, 1] - hours[:, 0]) / _HOUR


def _trips(
    draws: Draws, pickup: npt.NDArray[np.int64], unmetered: npt.NDArray[np.bool_], shape: dict[str, dict[str, Any]]
) -> Columns:
    """Draw both populations for every row, and select one for each: simple, and draws stay stable."""
    both = [_population(draws, name, pickup, shape[name]) for name in ("metered", "unmetered")]
    columns: Columns = {name: np.where(unmetered, both[1][name], both[0][name]) for name in both[0]}
    count, metered = len(pickup), shape["metered"]
    codes = np.asarray(metered["codes"])[draws.pick("codes", count, [row[-1] for row in metered["codes"]])]
    passengers = np.asarray(metered["passengers"])
    columns |= {
        "unmetered": unmetered,
        "payment_type": codes[:, 0],
        "RatecodeID": codes[:, 1],
        "trip_type": codes[:, 2],
        "passenger_count": passengers[draws.pick("passengers", count, passengers[:, 1]), 0],
        "stored": draws.chance("stored", count, metered["stored"]),
    }
    # Only card payments have recorded tips.
    columns["tip_amount"] = np.where(unmetered | (codes[:, 0] == 1), columns["tip_amount"], 0.0)
    return columns


def _population(draws: Draws, name: str, pickup: npt.NDArray[np.int64], shape: dict[str, Any]) -> Columns:
    count = len(pickup)

    def zones(what: str) -> npt.NDArray[np.int64]:
        pairs: npt.NDArray[np.int64] = np.asarray(shape[what], dtype=np.int64)
        picked = draws.pick(f"{name}.{what}", count, pairs[:, 1].astype(np.float64))
        return pairs[:, 0].take(picked)

    pickup_zone = zones("pickup_zones")
    miles = draws.quantiles(f"{name}.miles", count, shape["miles"])
    classes = np.digitize(miles, shape["minutes_edges"])
    minutes = np.zeros(count)
    for number, quantiles in enumerate(shape["minutes"]):
        inside = classes == number
        minutes[inside] = draws.quantiles(f"{name}.minutes.{number}", int(inside.sum()), quantiles)
    base, by_mile, by_minute = shape["fare"]
    fare = base + by_mile * miles + by_minute * minutes + draws.quantiles(f"{name}.fare", count, shape["fare_residual"])
    # The meter starts with three dollars.
    fare = np.round(np.maximum(fare, 3.0), 1 if name == "metered" else 2)
    tip = fare * draws.quantiles(f"{name}.tip", count, shape["tip_share"])
    tip[draws.chance(f"{name}.no_tip", count, shape["no_tip"])] = 0.0
    miles[draws.chance(f"{name}.zero_distance", count, shape["zero_distance"])] = 0.0
    whole = draws.chance(f"{name}.whole_minute", count, shape["whole_minute"])
    begin = np.where(whole, pickup // (60 * _SECOND) * 60 * _SECOND, pickup // _SECOND * _SECOND)
    unit = np.where(whole, 60, 1)
    seconds = np.maximum(np.rint(minutes * 60 / unit), 1).astype(np.int64) * unit
    same = draws.chance(f"{name}.same_zone", count, shape["same_zone"])
    vendors = np.asarray(shape["vendors"])
    return {
        "pickup": begin,
        "dropoff": begin + seconds * _SECOND,
        "PULocationID": pickup_zone,
        "DOLocationID": np.where(same, pickup_zone, zones("dropoff_zones")),
        "VendorID": vendors[draws.pick(f"{name}.vendor", count, vendors[:, 1]), 0],
        "trip_distance": np.round(miles, 2),
        "fare_amount": fare,
        "tip_amount": np.round(tip, 2),
        **_surcharges(draws, name, begin, shape["surcharges"]),
    }


def _surcharges(draws: Draws, name: str, pickup: npt.NDArray[np.int64], table: list[list[float]]) -> Columns:
    """Draw extra, taxes and tolls together, by the clock's class in the table's first column."""
    names = ("extra", "mta_tax", "improvement_surcharge", "tolls_amount", "congestion_surcharge")
    hour = (pickup // _HOUR + _EPOCH_HOUR_OF_WEEK) % 168
    night = (hour % 24 >= 20) | (hour % 24 < 6)
    rush = ~night & (hour % 24 >= 16) & (hour // 24 < 5)
    clock = np.where(night, 1, np.where(rush, 2, 0))
    rows = np.asarray(table)
    found = np.zeros((len(pickup), len(names)))
    for number in (0, 1, 2):
        inside = clock == number
        of_class = rows[rows[:, 0] == number]
        picked = draws.pick(f"{name}.surcharges.{number}", int(inside.sum()), of_class[:, -1])
        found[inside] = of_class[picked, 1:-1]
    return {column: found[:, place] for place, column in enumerate(names)}


def _dirty(draws: Draws, columns: Columns, shape: dict[str, dict[str, Any]]) -> None:
    dirt, unmetered = shape["dirt"], columns["unmetered"]
    count = len(unmetered)
    long = draws.chance("long", count, dirt["over_6h"])
    minutes = draws.quantiles("long_minutes", count, dirt["over_6h_minutes"])
    seconds = np.where(unmetered, np.rint(minutes) * 60, np.rint(minutes * 60)).astype(np.int64)
    columns["dropoff"] = np.where(long, columns["pickup"] + seconds * _SECOND, columns["dropoff"])
    far = draws.uniform("far", count) < np.where(unmetered, shape["unmetered"]["far"], shape["metered"]["far"])
    miles = np.round(draws.quantiles("far_miles", count, dirt["far_miles"]), 2)
    columns["trip_distance"] = np.where(far, miles, columns["trip_distance"])
    # Trips without any charge.
    free = draws.chance("zero_fare", count, dirt["zero_fare"]) & ~unmetered
    for name in _AMOUNTS:
        columns[name] = np.where(free, 0.0, columns[name])


_AMOUNTS = (
    "fare_amount",
    "extra",
    "mta_tax",
    "tip_amount",
    "tolls_amount",
    "improvement_surcharge",
    "congestion_surcharge",
    "cbd_congestion_fee",
)


def _charge(draws: Draws, columns: Columns, charges: npt.NDArray[np.int64], shape: dict[str, dict[str, Any]]) -> None:
    """Turn the rows into later reversed ones: short rides that ended in a dispute."""
    count = len(charges)
    fare = draws.quantiles("reversal_fare", count, shape["dirt"]["reversal_fare"])
    columns["fare_amount"][charges] = np.round(np.maximum(fare, 0.01), 2)
    columns["trip_distance"][charges] = np.round(draws.uniform("reversal_miles", count) * 0.3, 2)
    seconds = 5 + (draws.uniform("reversal_seconds", count) * 300).astype(np.int64)
    columns["dropoff"][charges] = columns["pickup"][charges] + seconds * _SECOND
    columns["tip_amount"][charges] = 0.0
    columns["payment_type"][charges] = 3 + draws.chance("reversal_payment", count, 0.3)
    columns["VendorID"][charges] = 2


def _reversed(name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # Adding zero turns -0.0 into 0.0.
    return -values + 0.0 if name in _AMOUNTS or name == "total_amount" else values


def _move_out_of_period(
    draws: Draws,
    columns: Columns,
    among: npt.NDArray[np.int64],
    shape: dict[str, dict[str, Any]],
) -> None:
    count = round(len(among) * shape["dirt"]["out_of_period"])
    if len(among) >= _UNSET_CLOCKS_FROM:
        count = max(count, len(_UNSET_CLOCKS))
    moved = draws.some("out_of_period", among, count)
    # Besides those of 2008 and 2009: meters some weeks late.
    days = 7 + (draws.uniform("out_of_period_days", len(moved)) * 21).astype(np.int64)
    pickup = columns["pickup"][moved] - days * 24 * _HOUR
    for place, clock in enumerate(_UNSET_CLOCKS[: len(moved)]):
        pickup[place] = _micros(clock)
    columns["dropoff"][moved] += pickup - columns["pickup"][moved]
    columns["pickup"][moved] = pickup


def _total(columns: Columns) -> None:
    columns["total_amount"] = np.round(np.sum([columns[name] for name in _AMOUNTS], axis=0), 2)


def _make_keys_unique(columns: Columns) -> None:
    """Make trip keys unique, as in real files: the later of two equal trips ends a second later."""
    names = ("VendorID", "pickup", "dropoff", "PULocationID", "DOLocationID", "total_amount")
    while True:
        order = np.lexsort([columns[name] for name in names])
        same = np.ones(max(len(order) - 1, 0), dtype=bool)
        for name in names:
            # Absolute total: no charge may coincide with another charge's reversal.
            values = np.abs(columns[name][order])
            same &= values[1:] == values[:-1]
        if not same.any():
            return
        columns["dropoff"][order[1:][same]] += _SECOND


def _damage(
    draws: Draws, columns: Columns, invalid: InvalidRows, among: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Damage rows in place, and return the rows whose pickup must be null."""
    rows = draws.some("invalid", among, invalid.total)
    ends = np.cumsum([invalid.dropoff_before_pickup, invalid.nan_amount, invalid.zone_out_of_range])
    backwards, nan, zone, null = np.split(rows, ends)
    columns["dropoff"][backwards] = columns["pickup"][backwards] - 60 * _SECOND * (1 + np.arange(len(backwards)))
    columns["total_amount"][nan] = np.nan
    columns["fare_amount"][nan] = np.nan
    # Below, just above, and far above 1 to 265.
    columns["PULocationID"][zone] = np.resize([0, 266, 999], len(zone))
    return null


def _table(columns: Columns, no_pickup: npt.NDArray[np.bool_], schema_name: SchemaName) -> pa.Table:
    unmetered = columns["unmetered"]
    nothing = np.ones(len(unmetered), dtype=bool)
    # Columns that are null in addition to a row's own nulls: the whole null block, and the unused fee.
    unset = ("store_and_fwd_flag", "RatecodeID", "passenger_count", "payment_type", "trip_type", "congestion_surcharge")
    masks = {
        "lpep_pickup_datetime": no_pickup,
        "ehail_fee": nothing,
        **dict.fromkeys(unset, unmetered),
    }
    values = columns | {
        "lpep_pickup_datetime": columns["pickup"].astype("datetime64[us]"),
        "lpep_dropoff_datetime": columns["dropoff"].astype("datetime64[us]"),
        "store_and_fwd_flag": np.where(columns["stored"], "Y", "N"),
        "ehail_fee": np.zeros(len(unmetered)),
    }
    schema = SCHEMAS[schema_name]
    arrays = [pa.array(values[name], mask=masks.get(name)).cast(schema.field(name).type) for name in schema.names]
    return pa.Table.from_arrays(arrays, schema=schema)


def _micros(moment: datetime) -> int:
    return int(np.datetime64(moment, "us").astype(np.int64))
