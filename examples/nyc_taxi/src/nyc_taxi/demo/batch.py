"""Compute the three jobs' expected tables with DuckDB, and compare them with the actual ones.

No code is shared with ``spark_jobs/``: the rules are written again in SQL, so that a mistake would have to be made
twice. Equality is exact. Money is summed in whole cents, so that the order of rows does not matter.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
from pyarrow import csv

from nyc_taxi.demo.compare import (
    EXAMPLES,
    Difference,
    compare_rows,
    duckdb_memory,
    in_cents,
    sum_in_dollars,
    without_zones,
)

__all__ = [
    "TRIP_KEY",
    "Landed",
    "Reasons",
    "compare_card_sessions",
    "compare_quarantine",
    "compare_trips",
    "compare_zone_windows",
    "expected_card_sessions",
    "expected_quarantine",
    "expected_trips",
    "expected_zone_windows",
    "read_landed",
]

Reasons = tuple[str, ...]
"""All reasons of a quarantined row, in the jobs' order; for a whole file, ``FILE_…`` without its message."""

TRIP_KEY: Final = (
    "VendorID",
    "lpep_pickup_datetime",
    "lpep_dropoff_datetime",
    "PULocationID",
    "DOLocationID",
    "total_amount",
)

_COLUMNS: Final = {
    "VendorID": "INTEGER",
    "lpep_pickup_datetime": "TIMESTAMP",
    "lpep_dropoff_datetime": "TIMESTAMP",
    "store_and_fwd_flag": "VARCHAR",
    "RatecodeID": "INTEGER",
    "PULocationID": "INTEGER",
    "DOLocationID": "INTEGER",
    "passenger_count": "INTEGER",
    "trip_distance": "DOUBLE",
    "fare_amount": "DOUBLE",
    "extra": "DOUBLE",
    "mta_tax": "DOUBLE",
    "tip_amount": "DOUBLE",
    "tolls_amount": "DOUBLE",
    "ehail_fee": "DOUBLE",
    "improvement_surcharge": "DOUBLE",
    "total_amount": "DOUBLE",
    "payment_type": "INTEGER",
    "trip_type": "INTEGER",
    "congestion_surcharge": "DOUBLE",
    "cbd_congestion_fee": "DOUBLE",
    "card_id": "VARCHAR",
}
_NOT_MONEY: Final = {"trip_distance"}
_MAY_MISS: Final = {
    "store_and_fwd_flag",
    "RatecodeID",
    "passenger_count",
    "trip_distance",
    "ehail_fee",
    "improvement_surcharge",
    "payment_type",
    "trip_type",
    "congestion_surcharge",
    "cbd_congestion_fee",
    "card_id",
}


@dataclass(frozen=True)
class Landed:
    """Content of landed files.

    Parameters
    ----------
    trips
        Valid trips, each once: of several with one key, the first by file and row.
    quarantine
        Number of quarantined rows (a whole file is one row) by reasons.
    duplicates
        Valid rows not in `trips`.
    """

    trips: pa.Table
    quarantine: Mapping[Reasons, int]
    duplicates: int


def read_landed(
    files: Iterable[Path], *, earliest: datetime, latest: datetime, rules: Mapping[str, str] | None = None
) -> Landed:
    """Read landed files and check their rows.

    Parameters
    ----------
    files
        Parquet, CSV, or files that are quarantined whole. Hidden files (``.``, ``_``) are ignored, as by the source.
        Times without a zone are UTC, the job's default.
    earliest, latest
        Bounds of the pickup, the second exclusive; UTC if they have no zone.
    rules
        The suite's row rules: by id, SQL that is true for a trip that fails.
    """
    seen = sorted(path for path in files if not path.name.startswith((".", "_")))
    quarantine: Counter[Reasons] = Counter()
    with duckdb_memory() as db:
        columns = ", ".join(f'"{name}" {kind}' for name, kind in _COLUMNS.items())
        db.execute(f"CREATE TABLE landed ({columns}, source_file VARCHAR, source_row BIGINT, reasons VARCHAR[])")
        for path in seen:
            quarantine += _load(db, path, _naive(earliest), _naive(latest))
        if rules:
            # A trip that is invalid in itself does not get so far.
            db.execute(f"UPDATE landed SET reasons = {_broken(rules)} WHERE len(reasons) = 0")
        bad = db.execute("SELECT reasons, count(*) FROM landed WHERE len(reasons) > 0 GROUP BY reasons").fetchall()
        quarantine.update({tuple(reasons): count for reasons, count in bad})
        key = ", ".join(f'"{name}"' for name in TRIP_KEY)
        trips = _table(
            db,
            f"""
            SELECT * EXCLUDE (reasons) FROM landed WHERE len(reasons) = 0
            QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY source_file, source_row) = 1
            ORDER BY source_file, source_row
            """,
        )
        valid = db.execute("SELECT count(*) FROM landed WHERE len(reasons) = 0").fetchone()
        assert valid is not None
    return Landed(trips, dict(quarantine), int(valid[0]) - trips.num_rows)


def expected_trips(files: Iterable[Path], *, earliest: datetime, latest: datetime) -> pa.Table:
    """Return the expected rows of ``trips``; see :func:`read_landed`."""
    return read_landed(files, earliest=earliest, latest=latest).trips


def expected_quarantine(files: Iterable[Path], *, earliest: datetime, latest: datetime) -> Mapping[Reasons, int]:
    """Return the expected number of rows in ``trips_quarantine`` by reasons; see :func:`read_landed`."""
    return read_landed(files, earliest=earliest, latest=latest).quarantine


def expected_zone_windows(trips: pa.Table, *, window: timedelta = timedelta(hours=1)) -> pa.Table:
    """Return the expected rows of ``zone_windows`` if no trip is late.

    Parameters
    ----------
    trips
        Rows of ``trips``, expected or actual.
    window
        The job's option.
    """
    with duckdb_memory() as db:
        db.register("trips", without_zones(trips))
        length = window // timedelta(microseconds=1)
        return _table(
            db,
            f"""
            WITH placed AS (
                SELECT *, epoch_us(lpep_pickup_datetime) AS micros,
                       micros - ((micros % {length}) + {length}) % {length} AS start
                FROM trips
            )
            SELECT make_timestamp(start) AS window_start, make_timestamp(start + {length}) AS window_end,
                   PULocationID AS zone_id, count(*) AS trips,
                   {sum_in_dollars("total_amount")} AS revenue,
                   CAST(sum({in_cents("fare_amount")}) AS DOUBLE) / (nullif(count(fare_amount), 0) * 100.0)
                       AS average_fare
            FROM placed GROUP BY start, PULocationID ORDER BY start, PULocationID
            """,
        )


def expected_card_sessions(trips: pa.Table, *, gap: timedelta = timedelta(minutes=30)) -> pa.Table:
    """Return the expected rows of ``card_sessions``, without ``status``, which depends on the time of day.

    Parameters
    ----------
    trips
        Rows of ``trips``, expected or actual; rows without a card are ignored.
    gap
        The job's option.
    """
    with duckdb_memory() as db:
        db.register("trips", without_zones(trips))
        micros = gap // timedelta(microseconds=1)
        return _table(
            db,
            f"""
            WITH ordered AS (
                SELECT *, epoch_us(lpep_pickup_datetime)
                          - lag(epoch_us(lpep_pickup_datetime)) OVER card > {micros} AS begins
                FROM trips WHERE card_id IS NOT NULL AND lpep_pickup_datetime IS NOT NULL
                WINDOW card AS (PARTITION BY card_id ORDER BY lpep_pickup_datetime)
            ), numbered AS (
                -- Not count_if: it is null up to the first value that is not, the first trip of each card.
                SELECT *, count(*) FILTER (begins) OVER (
                    PARTITION BY card_id ORDER BY lpep_pickup_datetime RANGE UNBOUNDED PRECEDING
                ) AS session
                FROM ordered
            )
            SELECT card_id, min(lpep_pickup_datetime) AS session_start, max(lpep_pickup_datetime) AS session_end,
                   count(*) AS trips, {sum_in_dollars("total_amount")} AS total_amount,
                   list_sort(list_distinct(list_concat(
                       list(PULocationID) FILTER (PULocationID IS NOT NULL),
                       list(DOLocationID) FILTER (DOLocationID IS NOT NULL)
                   ))) AS zones
            FROM numbered GROUP BY card_id, session ORDER BY card_id, session_start
            """,
        )


def compare_trips(expected: pa.Table, actual: pa.Table) -> Difference:
    """Compare trips, except their origin (``source_…``), which may differ between deliveries of one trip."""
    return compare_rows("trips", expected, actual, TRIP_KEY, list(_COLUMNS))


def compare_zone_windows(expected: pa.Table, actual: pa.Table) -> Difference:
    """Compare windows, except ``is_final``, which depends on the time of the read."""
    columns = ["window_start", "window_end", "zone_id", "trips", "revenue", "average_fare"]
    return compare_rows("zone_windows", expected, actual, ("window_start", "zone_id"), columns)


def compare_card_sessions(expected: pa.Table, actual: pa.Table) -> Difference:
    """Compare sessions, except ``status``, which depends on the time of the read."""
    columns = ["card_id", "session_start", "session_end", "trips", "total_amount", "zones"]
    return compare_rows("card_sessions", expected, actual, ("card_id", "session_start"), columns)


def compare_quarantine(expected: Mapping[Reasons, int], actual: pa.Table) -> Difference:
    """Compare numbers of quarantined rows by their reasons; by the rules' ids if row rules kept them out."""
    rules = actual.column("rules").to_pylist() if "rules" in actual.column_names else [None] * actual.num_rows
    found = Counter(
        tuple(broken or (one.partition(":")[0] if one.startswith("FILE_") else one for one in reasons))
        for broken, reasons in zip(rules, actual.column("reasons").to_pylist(), strict=True)
    )
    all_reasons = sorted(set(expected) | set(found))
    off = [(reasons, expected.get(reasons, 0), found[reasons]) for reasons in all_reasons]
    return Difference(
        table="trips_quarantine",
        expected=sum(expected.values()),
        actual=actual.num_rows,
        missing=sum(max(want - have, 0) for _, want, have in off),
        extra=sum(max(have - want, 0) for _, want, have in off),
        different=0,
        examples=tuple(
            f"{' + '.join(reasons)}: {want} expected, {have} found" for reasons, want, have in off if want != have
        )[:EXAMPLES],
    )


def _load(db: duckdb.DuckDBPyConnection, path: Path, earliest: datetime, latest: datetime) -> Counter[Reasons]:
    """Check a file's rows into ``landed``; return its other quarantine: the whole file, or lines that are no rows."""
    try:
        source, names, lost = _open(db, path)
        described = db.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()
        # DuckDB adds numbers to column names that differ only in capitals.
        shown, kinds = ([str(row[part]) for row in described] for part in (0, 1))
        if refused := _refused(names):
            return Counter([(refused,)])
        places = {name.strip().lower(): place for place, name in enumerate(names)}
        found = {name: places[name.lower()] for name in _COLUMNS if name.lower() in places}
        typed = {
            name: _typed(_name(shown[found[name]]), kinds[found[name]], kind)
            if name in found
            else f"CAST(NULL AS {kind})"
            for name, kind in _COLUMNS.items()
        }
        # "was_NAME": whether the file has a value, which the conversion may have lost.
        had = {name: f"{_name(shown[found[name]])} IS NOT NULL" if name in found else "false" for name in _COLUMNS}
        select = ", ".join(f'{typed[name]} AS "{name}", {had[name]} AS "was_{name}"' for name in _COLUMNS)
        columns = ", ".join(f'"{name}"' for name in _COLUMNS)
        db.execute(
            f"""
            INSERT INTO landed
            WITH typed AS (SELECT {select}, file_row_number AS source_row FROM {source})
            SELECT {columns}, {_text(path.name)}, source_row, {_reasons(earliest, latest)} FROM typed
            """
        )
    except (duckdb.Error, pa.ArrowException, OSError):
        return Counter([("FILE_UNREADABLE",)])
    return Counter({("WRONG_FIELD_COUNT",): lost} if lost else {})


def _open(db: duckdb.DuckDBPyConnection, path: Path) -> tuple[str, list[str], int]:
    """Return SQL for a file's rows, its columns' names, and how many rows have too few or too many fields."""
    with path.open("rb") as file:
        begin = file.read(4)
    if begin == b"PAR1":
        elements = db.execute(f"SELECT name, num_children FROM parquet_schema({_text(str(path))})").fetchall()
        return f"read_parquet({_text(str(path))}, file_row_number = true)", _top_level(elements), 0
    name = path.name.lower().removesuffix(".gz")
    if name.endswith((".json", ".jsonl", ".ndjson")):
        raise NotImplementedError(f"{path.name}: JSON lines are not compared")
    if not name.endswith(".csv") or not begin:
        raise pa.ArrowInvalid("no known format")
    rows, lost = _read_csv(path, "gzip" if begin.startswith(b"\x1f\x8b") else None)
    numbers = pa.array(range(rows.num_rows), pa.int64())
    shown = [f"column_{place}" for place in range(rows.num_columns)]
    db.register("csv_rows", pa.Table.from_arrays([*rows.columns, numbers], [*shown, "file_row_number"]))
    return "csv_rows", rows.schema.names, lost


def _top_level(elements: list[tuple[str, int | None]]) -> list[str]:
    """Return the top-level columns of a Parquet schema, which names each element before its children."""
    names: list[str] = []
    inner = 0
    for name, children in elements[1:]:
        if not inner:
            names.append(name)
        inner = max(inner - 1, 0) + (children or 0)
    return names


def _read_csv(path: Path, compression: str | None) -> tuple[pa.Table, int]:
    """Read CSV as text with arrow; the job uses Python's parser."""
    lost = 0

    def count(_: object) -> str:
        nonlocal lost
        lost += 1
        return "skip"

    def opened() -> Any:
        return pa.input_stream(str(path), compression=compression)

    parse = csv.ParseOptions(newlines_in_values=True, invalid_row_handler=count)
    names = csv.open_csv(opened(), parse_options=parse).schema.names
    lost = 0
    convert = csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=True,
    )
    rows = csv.read_csv(opened(), csv.ReadOptions(use_threads=False), parse_options=parse, convert_options=convert)
    return rows, lost


def _refused(names: list[str]) -> str | None:
    own = Counter(name.strip().lower() for name in names)
    if any(own[name.lower()] > 1 for name in _COLUMNS):
        return "FILE_AMBIGUOUS"
    missing = [name for name in _COLUMNS if not own[name.lower()]]
    spelled = {re.sub(r"[^a-z0-9]", "", name.lower()) for name in names}
    if set(missing) - _MAY_MISS or spelled & {re.sub("_", "", name.lower()) for name in missing}:
        return "FILE_FOREIGN"
    return None


def _name(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _reasons(earliest: datetime, latest: datetime) -> str:
    """Return SQL for the list of all errors of a row."""
    pickup, dropoff, zone = "lpep_pickup_datetime", "lpep_dropoff_datetime", '"PULocationID"'
    money = [f'"{name}"' for name, kind in _COLUMNS.items() if kind == "DOUBLE" and name not in _NOT_MONEY]
    rules = {f"UNPARSABLE:{name}": f'"was_{name}" AND "{name}" IS NULL' for name in _COLUMNS} | {
        "NO_PICKUP_TIME": f"NOT was_{pickup}",
        "PICKUP_OUT_OF_BOUNDS": f"{pickup} < TIMESTAMP '{earliest}' OR {pickup} >= TIMESTAMP '{latest}'",
        "DROPOFF_BEFORE_PICKUP": f"{dropoff} < {pickup}",
        "NO_PICKUP_ZONE": 'NOT "was_PULocationID"',
        "ZONE_OUT_OF_RANGE": f'{zone} NOT BETWEEN 1 AND 265 OR "DOLocationID" NOT BETWEEN 1 AND 265',
        "AMOUNT_NOT_FINITE": " OR ".join(f"NOT isfinite({name})" for name in money),
        "AMOUNT_OUT_OF_RANGE": " OR ".join(f"(isfinite({name}) AND abs({name}) > 1e9)" for name in money),
    }
    return _broken(rules)


def _broken(rules: Mapping[str, str]) -> str:
    """Return SQL for the list of the rules that a row breaks."""
    cases = ", ".join(f"CASE WHEN {rule} THEN {_text(code)} END" for code, rule in rules.items())
    return f"list_filter([{cases}], lambda reason: reason IS NOT NULL)"


def _typed(column: str, found: str, wanted: str) -> str:
    """Return SQL that converts a column without loss, or to null."""
    text = found == "VARCHAR"
    floating = found in ("FLOAT", "DOUBLE")
    decimal = found.startswith("DECIMAL")
    integer = found.endswith("INT") or found.endswith("INTEGER")
    null = f"CAST(NULL AS {wanted})"
    if wanted == "INTEGER":
        whole = {
            text: f"regexp_full_match(trim({column}), '[+-]?[0-9]+([.]0*)?')",
            floating: f"isfinite({column}) AND {column} = trunc({column})",
            decimal: f"{column} = trunc({column})",
            integer: "true",
        }.get(True)
        through = f"TRY_CAST(trim({column}) AS DECIMAL(38, 6))" if text else column
        return f"CASE WHEN {whole} THEN TRY_CAST({through} AS INTEGER) END" if whole else null
    if wanted == "DOUBLE":
        if integer:
            return f"CASE WHEN {column} BETWEEN -9007199254740992 AND 9007199254740992 THEN {column}::DOUBLE END"
        return f"TRY_CAST({column} AS DOUBLE)" if text or floating or decimal else null
    if wanted == "TIMESTAMP":
        if found == "TIMESTAMP WITH TIME ZONE":
            return f"make_timestamp(epoch_us({column}))"
        if found == "TIMESTAMP_NS":
            return f"CASE WHEN epoch_ns({column}) % 1000 = 0 THEN make_timestamp(epoch_us({column})) END"
        return f"TRY_CAST({column} AS TIMESTAMP)" if text or found.startswith("TIMESTAMP") or found == "DATE" else null
    return f"CAST({column} AS VARCHAR)" if text or integer else null


def _naive(moment: datetime) -> datetime:
    return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _table(db: duckdb.DuckDBPyConnection, query: str) -> pa.Table:
    return db.sql(query).to_arrow_table()
