"""Measure the shape of real trips: ``python -m nyc_taxi.trips.measure FILE… > shape.toml``, the file beside this.

Needed only for changes of the generator's model. Its output has aggregates only: shares, counts by zone and by hour,
and quantiles. No record can be reconstructed from them.
"""

from __future__ import annotations

import sys
from typing import Any

import duckdb

__all__ = ["measure"]

_HEADER = """\
# The shape of real green-taxi trips, for generator.py beside it. Aggregates only, no records.
# Measured with DuckDB from the TLC's files green_tripdata_2023-01, -02 and -03 (205,064 trips) by
#   python -m nyc_taxi.trips.measure green_tripdata_2023-01.parquet …-02.parquet …-03.parquet
# whose source says what each figure is. Quantiles are at even steps, the first and last at 0.2 % and
# 99.8 %. Not to be edited by hand.
"""

_IN_PERIOD = "pickup >= '2023-01-01' and pickup < '2023-04-01'"

# Two populations. For the second, the TLC fills neither passenger count nor payment (the "null block").
_BLOCKS = {"metered": "passenger_count is not null", "unmetered": "passenger_count is null"}

# Edges of the distance classes in miles; durations within a class are alike.
_EDGES = [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0, 14.0]

# Extras follow the clock: 0 by day, 1 at night from 20 to 6, 2 in the rush hours of working days, 16 to 20.
_CLOCK = """case when hour(pickup) >= 20 or hour(pickup) < 6 then 1
                 when hour(pickup) >= 16 and isodow(pickup) <= 5 then 2 else 0 end"""


def measure(files: list[str]) -> str:
    """Return the text of ``shape.toml``.

    Parameters
    ----------
    files
        TLC files of 2023-01 to 2023-03.
    """
    trips = _Trips(files)
    document = {"clock": _clock(trips), "dirt": _dirt(trips)}
    for name, where in _BLOCKS.items():
        document[name] = _block(trips, where)
    document["metered"] |= _codes(trips, _BLOCKS["metered"])
    return "\n".join([_HEADER, *(_section(name, values) for name, values in document.items())])


class _Trips:
    def __init__(self, files: list[str]) -> None:
        self._database = duckdb.connect()
        self._database.execute(
            f"""create table trips as select *, lpep_pickup_datetime as pickup,
                epoch(lpep_dropoff_datetime - lpep_pickup_datetime) / 60 as minutes
                from read_parquet({files!r}, union_by_name = true)"""
        )

    def rows(self, query: str) -> list[list[Any]]:
        found = self._database.sql(query).fetchall()
        return [[round(value, 4) if isinstance(value, float) else value for value in row] for row in found]

    def counts(self, columns: str, where: str, at_least: int = 1) -> list[list[Any]]:
        """Return the columns' values and, last, their number of trips."""
        return self.rows(
            f"select {columns}, count(*) n from trips where {where} group by all having n >= {at_least} order by all"
        )

    def quantiles(self, expression: str, where: str, steps: int) -> list[float]:
        # Without the extremes: the generator draws evenly between neighbours, so an outlier would distort a whole step.
        points = [min(max(step / steps, 0.002), 0.998) for step in range(steps + 1)]
        [[values]] = self.rows(f"select quantile_cont(({expression})::double, {points}) from trips where {where}")
        return [round(value, 3) for value in values]

    def share(self, what: str, of: str = "true") -> float:
        # Six digits: out-of-period pickups are five of two hundred thousand.
        [[value]] = self._database.sql(f"select count(*) filter ({what}) / count(*) from trips where {of}").fetchall()
        return float(round(value, 6))


def _clock(trips: _Trips) -> dict[str, Any]:
    # Mean trips by hour of the week, from Monday 00:00.
    means = trips.rows(
        f"""with days as (select isodow(pickup) d, count(distinct pickup::date) n
                          from trips where {_IN_PERIOD} group by 1)
            select count(*) / any_value(n) from trips join days on d = isodow(pickup)
            where {_IN_PERIOD} group by d, hour(pickup) order by d, hour(pickup)"""
    )
    return {"hour_of_week": [mean for (mean,) in means]}


def _dirt(trips: _Trips) -> dict[str, Any]:
    return {
        "unmetered": trips.share("passenger_count is null"),
        "out_of_period": trips.share(f"not ({_IN_PERIOD})"),
        "reversal": trips.share("fare_amount < 0"),
        "reversal_fare": trips.quantiles("-fare_amount", "fare_amount < 0", 20),
        "zero_fare": trips.share("fare_amount = 0"),
        "over_6h": trips.share("minutes > 360"),
        "over_6h_minutes": trips.quantiles("minutes", "minutes > 360", 20),
        "far_miles": trips.quantiles("trip_distance", "trip_distance > 100", 20),
    }


def _block(trips: _Trips, where: str) -> dict[str, Any]:
    usual = f"{where} and fare_amount > 0 and trip_distance between 0.05 and 60 and minutes between 0.5 and 180"
    by_card = f"{usual} and coalesce(payment_type, 1) = 1"
    # An ordinary least-squares plane, by its normal equations: DuckDB's regr_* take one variable only.
    [[a, b, ab, af, bf, mean_a, mean_b, mean_f]] = trips.rows(
        f"""select var_pop(trip_distance), var_pop(minutes), covar_pop(trip_distance, minutes),
            covar_pop(trip_distance, fare_amount), covar_pop(minutes, fare_amount),
            avg(trip_distance), avg(minutes), avg(fare_amount) from trips where {usual}"""
    )
    by_mile = round((af * b - bf * ab) / (a * b - ab * ab), 4)
    by_minute = round((bf * a - af * ab) / (a * b - ab * ab), 4)
    base = round(mean_f - by_mile * mean_a - by_minute * mean_b, 4)
    residual = f"fare_amount - ({base} + {by_mile} * trip_distance + {by_minute} * minutes)"
    return {
        "pickup_zones": trips.counts("PULocationID", where),
        "dropoff_zones": trips.counts("DOLocationID", f"{where} and DOLocationID <> PULocationID"),
        "same_zone": trips.share("DOLocationID = PULocationID", where),
        "vendors": trips.counts("VendorID", where),
        "whole_minute": trips.share("second(pickup) = 0", where),
        "zero_distance": trips.share("trip_distance = 0", where),
        "far": trips.share("trip_distance > 100", where),
        "miles": trips.quantiles("trip_distance", f"{where} and trip_distance > 0 and trip_distance <= 100", 50),
        "minutes_edges": _EDGES,
        "minutes": [
            trips.quantiles("minutes", f"{usual} and trip_distance >= {low} and trip_distance < {high}", 20)
            for low, high in zip([0.0, *_EDGES], [*_EDGES, 100.0], strict=True)
        ],
        # fare = base + by_mile * miles + by_minute * minutes + one of the residuals
        "fare": [base, by_mile, by_minute],
        "fare_residual": trips.quantiles(residual, usual, 50),
        # Tips are recorded for cards only.
        "no_tip": trips.share("tip_amount = 0", by_card),
        "tip_share": trips.quantiles("tip_amount / fare_amount", f"{by_card} and tip_amount > 0", 50),
        "surcharges": trips.counts(
            f"{_CLOCK}, extra, mta_tax, improvement_surcharge, tolls_amount, coalesce(congestion_surcharge, 0)",
            usual,
            at_least=20,
        ),
    }


def _codes(trips: _Trips, where: str) -> dict[str, Any]:
    return {
        "codes": trips.counts(
            "payment_type::int, RatecodeID::int, trip_type::int",
            f"{where} and fare_amount > 0 and trip_type is not null",
            at_least=10,
        ),
        "passengers": trips.counts("passenger_count::int", where),
        "stored": trips.share("store_and_fwd_flag = 'Y'", where),
    }


def _section(name: str, values: dict[str, Any]) -> str:
    return "\n".join([f"[{name}]", *(f"{key} = {_value(value)}" for key, value in values.items()), ""])


def _value(value: Any) -> str:
    if not isinstance(value, list):
        return repr(value)
    parts = [_value(item) for item in value]
    # Lines of readable length.
    lines, line = [], ""
    for part in parts:
        if len(line) + len(part) > 110 and line:
            lines.append(line.rstrip())
            line = ""
        line += f"{part}, "
    lines.append(line.rstrip().rstrip(","))
    return f"[{lines[0]}]" if len(lines) == 1 else "[\n  " + "\n  ".join(lines) + "\n]"


if __name__ == "__main__":
    sys.stdout.write(measure(sys.argv[1:]))
