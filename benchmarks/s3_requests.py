"""What a real driver asks of S3, and what it costs: requests by group and method, for a batch and an idle minute.

Run by ``make bench-requests``. A driver host runs ``zone_windows`` on a real S3 server on this machine, and the
server's access log is counted. Meanwhile this process writes the source, without being counted. A batch is a commit in
the checkpoint. Starts and the first batches do not count. Prices are Amazon's of most regions.

Options: ``--intervals`` (of the trigger, in seconds), ``--batches`` (of each), ``--idle`` (minutes after each),
``--partitions`` (of the state), ``--spark`` (further settings of the job).
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import yaml
from deltalake import write_deltalake

from benchmarks.report import REPOSITORY, let_drivers_import, print_machine
from benchmarks.scale import Requests
from streamwarden.model.spec import PROGRESS_TABLE
from streamwarden.model.supervision import Supervision
from streamwarden.operations.deploy import deploy_job
from streamwarden.runtime.launchers.hosts import driver_hosts
from streamwarden.store.workspace import Workspace, open_workspace
from streamwarden.supervision import driver_control
from streamwarden.supervision.decide import decide
from streamwarden.supervision.observe import observe
from tests.conftest import generated_trips
from tests.s3.server import REGION, S3Server
from tests.spark.job_runs import as_trips

JOB, SOURCE, BUCKET, BY = "zone_windows", "trips", "requests", "benchmark"
WARM_UP = 6
FEEDER = "the-benchmarks-own-requests"
"""Sent as the user agent by what writes the source, which is no part of the driver."""

METHODS = ("GET", "HEAD", "PUT", "POST", "LIST", "DELETE")
PRICE = {"GET": 0.4e-6, "HEAD": 0.4e-6, "PUT": 5e-6, "POST": 5e-6, "LIST": 5e-6, "DELETE": 0.0}
DAY_S = 86_400
EVERY_S = (5, 30, 60)
BY_TIME = ("documents", "driver host")
"""Groups that an idle driver asks for all the same, however often its batches are."""

_LINE = re.compile(rf" s3_(?P<act>\w+) .*? (?P<uri>/{BUCKET}\S*) \d{{3}} \S+ (?:\d+ ){{4}}\S+ (?P<agent>\S+)")
_GROUPS = (
    ("control/", "documents"),
    ("hosts", "driver host"),
    (f"tables/{SOURCE}", "source"),
    (f"tables/{PROGRESS_TABLE}", "history of batches"),
    ("tables/", "output table"),
    ("arrivals/", "landing, plans"),
)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="S3 requests of a real driver.")
    parser.add_argument("--intervals", type=int, nargs="+", default=[5, 30])
    parser.add_argument("--batches", type=int, default=24)
    parser.add_argument("--idle", type=float, default=3)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--spark", nargs="*", default=[], metavar="NAME=VALUE")
    given = parser.parse_args()
    print_machine(1)
    let_drivers_import()
    with tempfile.TemporaryDirectory(prefix="s3-requests-") as name:
        folder = Path(name)
        log = folder / "access.log"
        os.environ["VGW_ACCESS_LOG"] = str(log)
        server = S3Server(folder / "s3")
        server.start()
        try:
            workspace = _place(folder, server)
            with _host(workspace):
                try:
                    for interval in given.intervals:
                        _configure(workspace, interval, given.partitions, dict(one.split("=") for one in given.spark))
                        _measure(workspace, log, interval, given.batches, given.idle)
                finally:
                    driver_control.stop(workspace, JOB, by=BY)
        finally:
            server.stop()
    return 0


def _place(folder: Path, server: S3Server) -> Workspace:
    os.environ |= {
        "AWS_ACCESS_KEY_ID": server.access_key,
        "AWS_SECRET_ACCESS_KEY": server.secret_key,
        "AWS_ENDPOINT_URL_S3": server.endpoint,
        "AWS_REGION": REGION,
        "STREAMWARDEN_CONFIG": str(folder / "config"),
        "STREAMWARDEN_PROFILE": "bench",
        "STREAMWARDEN_SPARES": "0",
    }
    for kind in ("jobs", "profiles"):
        (folder / "config" / kind).mkdir(parents=True)
    profile = {"name": "bench", "root": str(folder / "root"), "launcher": "host", "s3": {"bucket": BUCKET}}
    (folder / "config" / "profiles" / "bench.yaml").write_text(yaml.safe_dump(profile))
    workspace = open_workspace("bench", config=folder / "config")
    workspace.storage._bucket.client.create_bucket(Bucket=BUCKET)  # type: ignore[attr-defined]
    return workspace


@contextmanager
def _host(workspace: Workspace) -> Iterator[None]:
    """Run a driver host within the context."""
    process = subprocess.Popen([sys.executable, "-m", "streamwarden.cli", "host", "--name", "bench"])
    try:
        while not driver_hosts(workspace):
            assert process.poll() is None, "the driver host ended"
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait()


def _configure(workspace: Workspace, interval: int, partitions: int, settings: dict[str, str]) -> None:
    spec = yaml.safe_load((REPOSITORY / "config" / "jobs" / f"{JOB}.yaml").read_text())
    spec["source"]["max_files_per_batch"] = 1
    spec |= {"trigger": {"interval": f"{interval}s"}, "spark": settings}
    # So few that the removal of old ones counts from the first batch that does.
    spec["state"] |= {"partitions": partitions, "min_batches_to_retain": WARM_UP - 1}
    (workspace.config / "jobs" / f"{JOB}.yaml").write_text(yaml.safe_dump(spec))


def _measure(workspace: Workspace, log: Path, interval: int, batches: int, idle_min: float) -> None:
    trips = as_trips(generated_trips(100 * (batches + WARM_UP), hours=24, seed=interval))
    address, options = workspace.delta_rs(SOURCE)

    def write(number: int) -> None:
        piece = trips.slice(100 * number, 100)
        write_deltalake(address, piece, mode="append", storage_options={**(options or {}), "user_agent": FEEDER})

    for number in range(WARM_UP):
        write(number)
    before = _commits(_lines(log, 0))
    deploy_job(workspace, JOB, by=BY)
    while _commits(_lines(log, 0)) < before + WARM_UP:
        time.sleep(1)
    # Spark starts batches at multiples of the interval. A write halfway gives each batch one commit of the source.
    began = (time.time() // interval + 2) * interval
    for number in range(batches):
        _sleep_until(began + (number - 0.5) * interval)
        write(WARM_UP + number)
        if not number:
            _sleep_until(began)
            mark = log.stat().st_size
    _sleep_until(began + batches * interval)
    while _commits(_lines(log, mark)) < batches:
        assert time.time() < began + batches * interval + 600, "the driver does not follow"
        time.sleep(0.2)
    busy, busy_s = _lines(log, mark), time.time() - began
    # A batch without rows follows, because the watermark has moved.
    time.sleep(2 * interval)
    mark, began = log.stat().st_size, time.time()
    time.sleep(60 * idle_min)
    idle, idle_s = _lines(log, mark), time.time() - began
    made = _commits(busy)
    idle_minute = _by_group(idle, idle_s / 60)
    each = _by_group(busy, made)
    for name in BY_TIME:
        # Those of a batch are what is beyond an idle driver's.
        for method in METHODS:
            each[name][method] = max(each[name][method] - idle_minute[name][method] * busy_s / 60 / made, 0)
    print(f"\ntrigger.interval {interval} s: {made} batches in {busy_s:.0f} s, then {idle_s:.0f} s idle")
    _print("for each batch", each)
    _print("for each idle minute", idle_minute)
    by_time = sum(_cost(idle_minute[name]) for name in BY_TIME) * DAY_S / 60
    batch = sum(map(_cost, each.values()))
    for every in sorted({interval, *EVERY_S}):
        print(f"a batch each {every} s: ${batch * DAY_S / every:.2f} a day, and ${by_time:.2f} by time")
    sent, _ = Requests(workspace).of(lambda: decide(observe(workspace, JOB), Supervision()))
    print(f"\na supervisor's look: {dict(sent)}", flush=True)


def _sleep_until(moment: float) -> None:
    time.sleep(max(moment - time.time(), 0))


def _lines(log: Path, mark: int) -> list[tuple[str, str]]:
    """Return method and key of the driver's and the host's requests since a size of the log."""
    with log.open("rb") as file:
        file.seek(mark)
        found = [_LINE.search(line) for line in file.read().decode().splitlines()]
    return [_request(one) for one in found if one is not None and one["agent"] != FEEDER]


def _request(line: re.Match[str]) -> tuple[str, str]:
    act, url = line["act"], urlsplit(line["uri"])
    key = unquote(url.path).removeprefix(f"/{BUCKET}").lstrip("/")
    if act.startswith("List"):
        return "LIST", parse_qs(url.query).get("prefix", [""])[0]
    if act == "DeleteObjects" or "MultipartUpload" in act:
        return "POST", key
    method = next((name for name in METHODS if act.upper().startswith(name)), "PUT")
    return method, key


def _group(key: str) -> str:
    if key.startswith("checkpoints/"):
        return "state" if "/state" in key else "checkpoint"
    return next((name for begin, name in _GROUPS if key.startswith(begin)), "many keys, other")


def _commits(requests: Iterable[tuple[str, str]]) -> int:
    return len({key for method, key in requests if method == "PUT" and re.search(r"/commits/\d+$", key)})


def _by_group(requests: Iterable[tuple[str, str]], number: float) -> dict[str, dict[str, float]]:
    """Return requests by group and method, divided by a number."""
    groups: dict[str, dict[str, float]] = {name: dict.fromkeys(METHODS, 0.0) for name in BY_TIME}
    for method, key in requests:
        groups.setdefault(_group(key), dict.fromkeys(METHODS, 0.0))[method] += 1 / number
    return groups


def _cost(count: Mapping[str, float]) -> float:
    return sum(number * PRICE[method] for method, number in count.items())


def _print(by: str, groups: Mapping[str, Mapping[str, float]]) -> None:
    total = {method: sum(count[method] for count in groups.values()) for method in METHODS}
    print(f"| {by} | " + " | ".join(METHODS) + " | $ a million |\n|---|" + "---|" * (len(METHODS) + 1))
    for name, count in {**groups, "all": total}.items():
        cells = [f"{count[method]:.1f}" for method in METHODS]
        print(f"| {name} | " + " | ".join(cells) + f" | {_cost(count) * 1e6:.0f} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
