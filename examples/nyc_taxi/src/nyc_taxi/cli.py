"""Commands of the example: replay, generate, feed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from streamwarden.cli.terminal import (
    JsonOption,
    ProfileOption,
    RootOption,
    err,
    out,
    print_json,
    reported,
)
from streamwarden.errors import StreamwardenError
from streamwarden.model.durations import parse_duration
from streamwarden.store.workspace import Workspace, open_workspace

if TYPE_CHECKING:
    import pyarrow as pa

    from nyc_taxi.trips.replay import ReplayProgress

__all__ = ["app"]

app = typer.Typer()

_LINE_S = 10.0
"""Seconds between two lines of a replay without a terminal."""


@app.command()
@reported
def replay(
    source: Annotated[
        list[str], typer.Argument(help="TLC green-taxi Parquet files, or the word `generator`.", show_default=False)
    ],
    profile: ProfileOption = None,
    root: RootOption = None,
    landing: Annotated[Path | None, typer.Option(help="Folder to write files to; default: ROOT/landing.")] = None,
    speed: Annotated[str, typer.Option(help="Seconds of event time per second, or max.")] = "600",
    late_share: Annotated[float, typer.Option(help="Share of trips that arrive late, 0 to 1.")] = 0.05,
    late_min: Annotated[str, typer.Option(help="Least delay of a late trip.")] = "5m",
    late_max: Annotated[str, typer.Option(help="Largest delay of a late trip.")] = "2h",
    file_every: Annotated[str, typer.Option(help="Event time per file.")] = "15m",
    start: Annotated[datetime | None, typer.Option(help="Leave out earlier pickups.")] = None,
    end: Annotated[datetime | None, typer.Option(help="Leave out pickups from this time on.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the choice of late trips, and of the generator.")] = 0,
    again: Annotated[bool, typer.Option("--restart", help="Start from the beginning instead of resuming.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write trips as files into a folder, as a collector would. Ctrl-C stops; the same command resumes."""
    from nyc_taxi.trips.generator import GeneratorOptions, generate
    from nyc_taxi.trips.replay import Replay, ReplayOptions, stop_on_signals
    from nyc_taxi.trips.tlc import read_tlc

    options = ReplayOptions(
        speed="max" if speed == "max" else _number("--speed", speed),
        late_share=late_share,
        late_min=_duration("--late-min", late_min),
        late_max=_duration("--late-max", late_max),
        file_every=_duration("--file-every", file_every),
        start=start,
        end=end,
        seed=seed,
    )
    workspace = open_workspace(profile, root=root)
    if source == ["generator"]:
        period = {name: value for name, value in (("start", start), ("end", end)) if value is not None}
        trips = generate(GeneratorOptions(seed=seed, **period))  # type: ignore[arg-type]
    else:
        trips = read_tlc([Path(name) for name in source])
    job = Replay(trips, landing or workspace.root / "landing", options, restart=again)
    with stop_on_signals() as stop_event, _shown(job.plan.trips.num_rows, transient=as_json) as show:
        done = job.run(show, stop_event)
    if as_json:
        print_json(vars(done))
    elif done.done:
        out.print(f"replay: all {done.total_trips:,} trips have landed in {done.total_files} files")
    else:
        out.print(f"replay: stopped at {done.trips:,} of {done.total_trips:,} trips; the same command resumes")


@app.command("generate")
@reported
def generate_trips(
    path: Annotated[Path, typer.Argument(metavar="OUT", help="Parquet file to write.", show_default=False)],
    start: Annotated[datetime, typer.Option(help="Earliest pickup.")] = datetime(2023, 3, 6),
    end: Annotated[datetime, typer.Option(help="All pickups are earlier than this.")] = datetime(2023, 3, 13),
    trips: Annotated[
        int | None, typer.Option(help="Number of trips; default: about as many as green taxis have.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same trips.")] = 0,
    schema: Annotated[str, typer.Option(help="2023, or 2025 (with cbd_congestion_fee).")] = "2023",
    dirt: Annotated[bool, typer.Option(help="Add the errors that real files have.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Generate trips that resemble real ones, and write them as a TLC file."""
    import pyarrow.parquet as pq

    from nyc_taxi.trips.generator import GeneratorOptions, generate

    options = GeneratorOptions(
        start=start,
        end=end,
        trips=trips,
        seed=seed,
        schema=schema,  # type: ignore[arg-type]
        dirt=dirt,
    )
    table = generate(options)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    if as_json:
        print_json({"file": str(path), "trips": table.num_rows})
    else:
        out.print(f"{path}: {table.num_rows:,} trips")


@app.command()
@reported
def feed(
    stream: Annotated[
        str, typer.Argument(help="payments (of the table trips), sensor_readings or trades.", show_default=False)
    ],
    table: Annotated[str | None, typer.Option(help="Append to this Delta table; default: STREAM.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Write Parquet files here instead.")] = None,
    kafka: Annotated[str | None, typer.Option(help="Write JSON to HOST:PORT/TOPIC instead.")] = None,
    rows: Annotated[int, typer.Option(min=1, help="Number of readings or trades.")] = 20_000,
    pieces: Annotated[int, typer.Option(min=1, help="Number of writes.")] = 10,
    pause: Annotated[float, typer.Option(min=0, help="Seconds between two writes.")] = 1.0,
    repeated: Annotated[float, typer.Option(min=0, max=1, help="Share of events that come twice.")] = 0.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same stream.")] = 0,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a synthetic stream, as its producer would: some events out of order, some repeated."""
    from nyc_taxi.streams.feed import FeedOptions, to_delta, to_files, to_kafka
    from nyc_taxi.streams.feed import feed as run_feed

    workspace = open_workspace(profile, root=root)
    events, key = _events(workspace, stream, rows, seed)
    if kafka is not None:
        servers, _, topic = kafka.rpartition("/")
        write = to_kafka(servers, topic, key)
    elif folder is not None:
        write = to_files(folder)
    else:
        write = to_delta(*workspace.delta_rs(table or stream))
    options = FeedOptions(pieces=pieces, pause=pause, repeated=repeated, seed=seed)

    def say(number: int, written: int) -> None:
        if not as_json:
            err.print(f"{stream}: {written:,} rows in {number} of {pieces} writes", highlight=False)

    written = run_feed(events, write, options, say)
    if as_json:
        print_json({"stream": stream, "rows": written})


def _events(workspace: Workspace, stream: str, rows: int, seed: int) -> tuple[pa.Table, str]:
    """Return a stream's events, and the column of their key."""
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    from nyc_taxi.streams import series
    from nyc_taxi.streams.payments import PaymentOptions, payments_of

    if stream == "payments":
        address, options = workspace.delta_rs("trips")
        try:
            trips = DeltaTable(address, storage_options=options).to_pyarrow_table()
        except TableNotFoundError as error:
            raise StreamwardenError("REPLAY_SOURCE_INVALID", "there is no table trips yet: run ingest_trips") from error
        return payments_of(trips, PaymentOptions(seed=seed)), "payment_id"
    if stream == "sensor_readings":
        return series.sensor_readings(rows, seed=seed), "sensor_id"
    if stream == "trades":
        return series.trades(rows, seed=seed), "symbol"
    raise typer.BadParameter(f"{stream!r} is none of payments, sensor_readings and trades")


@contextmanager
def _shown(trips: int, *, transient: bool) -> Iterator[Callable[[ReplayProgress], None]]:
    """Yield a function that shows a replay's progress: a bar on a terminal, else a line every ten seconds."""
    if not err.is_terminal:
        yield _Lines()
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,}/{task.total:,} trips"),
        TimeElapsedColumn(),
        console=err,
        transient=transient,
    )
    with bar:
        shown = bar.add_task("replay", total=trips)
        yield lambda now: bar.update(shown, completed=now.trips, description=f"{now.clock:%Y-%m-%d %H:%M}")


class _Lines:
    """Prints a replay's progress: at its beginning, and every ten seconds. The command prints its end."""

    def __init__(self) -> None:
        self._due = 0.0

    def __call__(self, now: ReplayProgress) -> None:
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _LINE_S
        err.print(
            f"replay: {now.clock:%Y-%m-%d %H:%M}, {now.trips:,} of {now.total_trips:,} trips have landed in {now.files}"
            f" of {now.total_files} files",
            highlight=False,
            soft_wrap=True,
        )


def _duration(option: str, text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither a number nor max", param_hint=option) from None
