"""Readers of what others wrote, each with real samples: what it returns or raises is all that may happen."""

from __future__ import annotations

import io
import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from kubernetes.client import ApiClient
from urllib3 import HTTPResponse

from streamwarden.driver.keyed_rows import decoder
from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.checkpoint_files import StateFileMissing, check_described, closure, newest_closure
from streamwarden.formats.delta_checkpoint import Checkpoint, read_checkpoint
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.formats.published_log import PublishedLog
from streamwarden.keyed_state.bases import BASE_APART
from streamwarden.keyed_state.chunks import encoded
from streamwarden.keyed_state.layout import StateField, StateLayout
from streamwarden.landing.file import LandedFile
from streamwarden.landing.plans import Plans, read_plans
from streamwarden.quality.documents import read_run
from streamwarden.quality.gate_state import gate_document
from streamwarden.quality.statements import StatementError, condition, parsed
from streamwarden.quality.suites import load_suite
from streamwarden.runtime.launchers import kubernetes, yarn, yarn_rest
from streamwarden.runtime.launchers.kubernetes_api import PodApi
from streamwarden.savepoints.catalog import load
from streamwarden.storage import LocalStorage
from streamwarden.store.config import load_alerts, load_job, load_profile
from streamwarden.store.documents import JobDocuments
from streamwarden.store.row_rules import with_row_rules
from streamwarden.store.workspace import Workspace, open_workspace

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Target:
    """A reader.

    Parameters
    ----------
    read
        Gets bytes that others wrote.
    samples
        Samples of such bytes, as real programs write them.
    allowed
        Exceptions that the reader's callers expect, beside a StreamwardenError.
    """

    read: Callable[[bytes], object]
    samples: Callable[[], list[bytes]]
    allowed: tuple[type[Exception], ...] = field(default=())

    def __call__(self, data: bytes) -> None:
        """Read, and raise only what nobody expects."""
        try:
            self.read(data)
        except StreamwardenError as error:
            # To be shown: a terminal and a document must hold it.
            assert error.code and str(error).encode(errors="surrogateescape")
        except self.allowed:
            pass


@cache
def place() -> Workspace:
    """Return a place in memory, if the machine has such a folder."""
    shared = Path("/dev/shm")
    root = Path(tempfile.mkdtemp(prefix="streamwarden-fuzz-", dir=shared if shared.is_dir() else None))
    for name in ("jobs", "profiles"):
        (root / "config" / name).mkdir(parents=True)
    (root / "expectations").mkdir()
    (root / "config/profiles/test.yaml").write_text(yaml.safe_dump({"name": "test", "root": str(root / "root")}))
    return open_workspace("test", config=root / "config")


def end() -> None:
    """Remove the place."""
    shutil.rmtree(place().config.parent, ignore_errors=True)


def put(key: str, data: bytes) -> None:
    """Write a file below the root, without a sync."""
    path = place().root / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def documents(data: bytes) -> None:
    """Read each control document of a job, all with these bytes."""
    read = JobDocuments(place().storage, "trips")
    made = [read.desired, read.checkpoint, read.lease, read.supervision, read.operation, read.health]
    made += [read.parallelism, read.cancel, read.launch("i"), read.heartbeat("i"), read.progress("i"), read.exit("i")]
    made += [read.stop("i"), read.past_operation("o"), read.reread("r"), read.totals(1), gate_document(place(), "t")]
    for one in made:
        put(one.key, data)
        try:
            one.read()
        except StreamwardenError as error:
            assert error.code == "DOCUMENT_INVALID"


def manifest(data: bytes) -> None:
    """Read a savepoint's manifest."""
    put("savepoints/trips/s/manifest.json", data)
    found = load(place(), "trips", "s")
    if found is not None:
        for one in found.manifest.files:
            assert ".." not in one.path.split("/")


def delta_log(data: bytes) -> None:
    """Read a commit of a table."""
    put("tables/t/_delta_log/00000000000000000000.json", data)
    log = DeltaLog(place().files, "t")
    for read in (
        lambda: log.actions(0), lambda: log.change(0), lambda: log.changed_since("streamwarden/"),
        lambda: log.after("streamwarden/trips/g000001", 3),
    ):  # fmt: skip
        try:
            read()
        except StreamwardenError as error:
            assert error.code == "TABLE_DAMAGED"


def published(data: bytes) -> None:
    """Read an entry of the log of published versions."""
    put("published/t/_delta_log/00000000000000000000.json", data)
    log = PublishedLog(place(), "t")
    for read in (log.at, log.identity, log.lost_files):
        try:
            read()
        except StreamwardenError:
            continue


def delta_checkpoint(data: bytes) -> None:
    """Read a table's checkpoint, a Parquet file."""
    name = "00000000000000000000.checkpoint.parquet"
    put(f"tables/c/_delta_log/{name}", data)
    read_checkpoint(place().files, "tables/c/_delta_log", Checkpoint(0, (name,)))


def offsets(data: bytes) -> None:
    """Read a checkpoint whose newest offsets and commit are these bytes, and its state."""
    base = "checkpoints/trips/g000001"
    put(f"{base}/metadata", b'{"id":"x"}')
    put(f"{base}/offsets/0", OFFSETS)
    put(f"{base}/commits/0", COMMIT)
    for kind in ("offsets", "commits"):
        put(f"{base}/{kind}/1", data if kind == "offsets" else COMMIT)
    for number in range(4):
        put(f"{base}/sources/0/{number}", READ)
    put(f"{base}/state/0/_metadata/metadata", METADATA)
    for partition in range(2):
        for version in (1, 2):
            put(f"{base}/state/0/{partition}/{version}.changelog", b"x")
    reader = CheckpointReader(place().storage, base)
    found = reader.offsets(1)
    reader.check()
    assert found is not None
    with suppress(StateFileMissing):
        closure(place().files, base, found)


def state(data: bytes) -> None:
    """Read an operator's metadata, its schema and a snapshot of its state."""
    base = "checkpoints/state/g000001"
    put(f"{base}/metadata", b'{"id":"x"}')
    for kind, content in (("offsets", OFFSETS), ("commits", COMMIT)):
        put(f"{base}/{kind}/0", content)
    whole = {"_metadata/metadata": METADATA, "_stateSchema/default/0": SCHEMA}
    whole |= {"0/1.zip": snapshot(), "1/1.zip": snapshot()}
    for name in whole:
        for other, content in whole.items():
            put(f"{base}/state/0/{other}", data if other == name else content)
        for read in (lambda: newest_closure(place().files, place().storage, base),
                     lambda: check_described(place().storage, base)):  # fmt: skip
            try:
                read()
            except StreamwardenError as error:
                assert error.code in ("CHECKPOINT_DAMAGED", "SAVEPOINT_UNSUPPORTED")


def plans(data: bytes) -> None:
    """Read a plan of landed files, the summary of plans, and the log of what a query has read."""
    folder = "arrivals/trips/g000001"
    read = Plans(LocalStorage(place().root), folder)
    for name in ("0000000000.jsonl", "known.txt", "refused.json"):
        put(f"{folder}/{name}", data)
    for one in (lambda: read.read(0), lambda: read.known([0]), read.refused):
        try:
            for file in one() if one is not read.refused else ():
                assert isinstance(file, LandedFile | dict | list | str)
        except StreamwardenError as error:
            assert error.code == "DOCUMENT_INVALID"
    put("checkpoints/plans/g000001/sources/0/0", data)
    list(read_plans(place(), "checkpoints/plans/g000001"))


def configuration(data: bytes) -> None:
    """Read the YAML of a job, a profile and the alerts."""
    config = place().config
    for name in ("jobs/trips.yaml", "profiles/other.yaml", "alerts.yaml"):
        (config / name).write_bytes(data)
    for read in (lambda: load_job("trips", config=config), lambda: load_profile("other", config=config),
                 lambda: load_alerts(config)):  # fmt: skip
        try:
            read()
        except StreamwardenError as error:
            assert error.code in ("CONFIG_INVALID", "SUITE_INVALID")


@cache
def job() -> Any:
    """Return a job of the repository."""
    return load_job("ingest_trips", config=REPOSITORY / "config")


def suites(data: bytes) -> None:
    """Read a suite, and the row rules in it."""
    folder = place().config.parent / "expectations"
    (folder / "trips.json").write_bytes(data)
    for read in (lambda: load_suite(folder / "trips.json"), lambda: with_row_rules(job(), folder)):
        try:
            found = read()
        except StreamwardenError as error:
            assert error.code == "SUITE_INVALID"
        else:
            for one in getattr(found, "expectations", ()):
                assert isinstance(one.columns, tuple) and one.sentence


def statements(data: bytes) -> None:
    """Parse a query and a condition of a suite."""
    for read in (parsed, condition):
        try:
            read(data.decode(errors="replace"))
        except StatementError:
            continue


def results(data: bytes) -> None:
    """Read the results of a check."""
    put("quality/r/results.json", data)
    read_run(LocalStorage(place().root), "quality", "r")


def landed(data: bytes) -> None:
    """Read a landed file of each format, as the example's job does: bad input is rows with a reason."""
    from spark_jobs.trip_files import read_file
    from spark_jobs.trip_rules import Rules

    folder = place().root / "landing"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("a.parquet", "a.csv", "a.jsonl"):
        path = folder / name
        path.write_bytes(data)
        status = path.stat()
        file = LandedFile(folder=str(folder), name=name, length=len(data), modified_ms=status.st_mtime_ns // 1_000_000)
        for _ in read_file(file, Rules(earliest=0, latest=4_000_000_000_000_000)):
            pass


@cache
def launchers() -> tuple[yarn.YarnLauncher, kubernetes.KubernetesLauncher]:
    """Return the launchers of YARN and of Kubernetes, whose profiles name no real cluster."""
    config = place().config
    manager = {"resource_managers": ["http://127.0.0.1:9"]}
    pods = {"namespace": "n", "image": "i", "driver_template": "pod.yaml"}
    for kind, master, block in (("yarn", "yarn", manager), ("kubernetes", "k8s://https://127.0.0.1:9", pods)):
        profile = {"name": kind, "root": str(place().root), "launcher": kind, "master": master, kind: block}
        (config / f"profiles/{kind}.yaml").write_text(yaml.safe_dump({**profile, "same_image": True}))
    return (
        yarn.YarnLauncher(open_workspace("yarn", config=config)),
        kubernetes.KubernetesLauncher(open_workspace("kubernetes", config=config)),
    )


class Pool:
    """What the Kubernetes client sends its requests by: each answer has the same bytes."""

    def __init__(self, status: int, data: bytes) -> None:
        self._status, self._data = status, data

    def request(self, *_: object, **__: object) -> HTTPResponse:
        """Answer."""
        return HTTPResponse(body=io.BytesIO(self._data), status=self._status, preload_content=False)


def cluster_answers(data: bytes) -> None:
    """Read answers of YARN's managers and of Kubernetes' API server; each answer has these bytes.

    Streamwarden reads no answer of a standalone master: Spark itself does.
    """
    for status in (200, 403):
        client, answer = ApiClient(), httpx.Response(status, content=data)
        client.rest_client.pool_manager = Pool(status, data)
        api = PodApi(client, "n")
        with ExitStack() as patched:
            transport = httpx.MockTransport(lambda _, answer=answer: answer)
            for module, name, other in (
                (yarn_rest, "_client", lambda transport=transport: httpx.Client(transport=transport)),
                (kubernetes, "open_api", lambda *_, api=api: api),
                # No waiting for the end of a killed driver.
                (yarn, "KILL_S", 0),
                (kubernetes, "KILL_S", 0),
            ):
                patched.enter_context(mock.patch.object(module, name, other))
            for launcher in launchers():
                found = launcher.find("trips", "i")
                # A status and a document must hold it.
                found.reason.encode()
                launcher.kill("trips", "i")
                launcher.logs("trips", "i", 3)
            launchers()[1].remove_ended(api, "trips")


LAYOUT = StateLayout(
    {"card": pa.string()},
    {
        "number": StateField(pa.int64()), "seen": StateField(pa.list_(pa.timestamp("us"))),
        "place": StateField(pa.string(), since=2, default="x"),
    },
)  # fmt: skip


def keyed_bases(data: bytes) -> None:
    """Read buckets of keyed state whose chunk or base has these bytes, in each version."""
    whole = {"version": 2, "blob": chunk(2)}
    read = decoder(LAYOUT)
    for version in (1, 2, 3):
        other = {"version": version, "blob": data}
        apart = [{"version": BASE_APART, "blob": b"id"}, whole]
        buckets = [([other, whole], None), ([whole, other], None), (apart, other)]
        for stored, base in buckets:
            key = {"partition": 0, "chunks": stored, "base": base}
            try:
                for rows in read([pa.RecordBatch.from_pylist([key], STORED)]):
                    # What Spark gets must be whole: its JVM reads it without a check.
                    rows.validate(full=True)
            except StreamwardenError as error:
                assert error.code == "STATE_UNREADABLE"


_CHUNK = pa.struct({"version": pa.int32(), "blob": pa.binary()})
STORED = pa.schema({"partition": pa.int32(), "chunks": pa.list_(_CHUNK), "base": _CHUNK})


def chunk(version: int) -> bytes:
    """Return a chunk of keyed state with two keys."""
    layout = StateLayout(LAYOUT.key, {name: one for name, one in LAYOUT.fields.items() if one.since <= version})
    columns = {
        "hash": np.array([-3, 8]), "card": ["a", "b"], "expires_at": np.array([9, 2**60]),
        "timer_at": np.array([5, 2**63 - 1]), "number": [1, None], "seen": [[0, 1], []], "place": ["x", None],
    }  # fmt: skip
    return encoded(
        layout, pa.RecordBatch.from_pydict({one: columns[one] for one in layout.schema.names}, layout.schema)
    ).blob


def shifted() -> bytes:
    """Return a chunk, uncompressed as of earlier versions, whose second key ends 1 GB behind its bytes."""
    rows = pa.ipc.read_record_batch(pa.py_buffer(chunk(2)), LAYOUT.schema).serialize().to_pybytes()
    ends = b"".join(number.to_bytes(4, "little") for number in (0, 1, 2))
    assert rows.count(ends) == 1
    return rows.replace(ends, ends[:8] + b"\0\0\0\x40")


OFFSETS = (
    b'v1\n{"batchWatermarkMs":1000,"batchTimestampMs":1700000000000,"conf":{"spark.sql.shuffle.partitions":"2"}}\n'
    b'{"logOffset":3}\n'
)
COMMIT = b'v1\n{"nextBatchWatermarkMs":1000}'
METADATA = (
    b'v1\n{"operatorInfo":{"operatorId":0,"operatorName":"stateStoreSave"},"stateStoreInfo":'
    b'[{"storeName":"default","numColsPrefixKey":0,"numPartitions":2}]}'
)
_FIELDS = b'{"type":"struct","fields":[{"name":"key","type":"long","nullable":true,"metadata":{}}]}'
SCHEMA = b"".join([
    len(b"v2").to_bytes(2) + b"v2", (1).to_bytes(4), len(_FIELDS).to_bytes(2) + _FIELDS,
    (1).to_bytes(4), len(_FIELDS).to_bytes(2) + _FIELDS,
])  # fmt: skip


def snapshot() -> bytes:
    """Return a snapshot of RocksDB's state without tables."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr("metadata", b'v1\n{"sstFiles":[],"logFiles":[],"numKeys":0}')
    return made.getvalue()


def parquet() -> bytes:
    """Return a small Parquet file."""
    made = io.BytesIO()
    add = {"path": "a.parquet", "size": 3, "partitionValues": [("day", "1")], "modificationTime": 1, "dataChange": True}
    kind = pa.struct({"path": pa.string(), "size": pa.int64(), "partitionValues": pa.map_(pa.string(), pa.string()),
                      "modificationTime": pa.int64(), "dataChange": pa.bool_()})  # fmt: skip
    pq.write_table(
        pa.table({"add": pa.array([add], kind), "sidecar": pa.array([None], pa.struct({"path": pa.string()}))}), made
    )
    return made.getvalue()


_COMMITS = [
    {"commitInfo": {"operation": "WRITE", "operationParameters": {"mode": "Append"}, "tags": {"content": "0"}}},
    {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
    {"metaData": {"id": "x", "format": {"provider": "parquet"}, "schemaString": "{}", "partitionColumns": []}},
    {"txn": {"appId": "streamwarden/trips/g000001", "version": 3, "lastUpdated": 1}},
    {"add": {"path": "a%20b.parquet", "size": 10, "stats": '{"numRecords":1}', "dataChange": True}},
    {"remove": {"path": "b.parquet", "dataChange": True, "deletionTimestamp": 1}},
]
LOG = "\n".join(map(json.dumps, _COMMITS)).encode()
PLAN = b'{"folder":"/landing","name":"a.csv","length":3,"modified_ms":1700000000000,"reading":2}\n'
READ = b'v1\n{"path":"file:///arrivals/trips/g000001/0000000000.jsonl","timestamp":1,"batchId":0}'
RUN = json.dumps({
    "format": 1, "run_id": "r", "started": "2026-03-08T12:00:00Z", "ended": "2026-03-08T12:00:01Z", "seconds": 1.0,
    "tables_dir": "/tables", "great_expectations": "1.24.1", "tables": [
        {"table": "trips", "status": "passed", "rows": 3, "version": 1, "seconds": 0.1, "expectations": []},
    ],
}).encode()  # fmt: skip
APPLICATION = {
    "id": "application_1772000000000_0007", "state": "FAILED", "finalStatus": "FAILED", "startedTime": 1772000001000,
    "diagnostics": "[Sun Mar 08] Container killed. exitCode: -104", "launchTime": 1772000002000, "finishedTime": 1,
    "amHostHttpAddress": "127.0.0.1:9", "amContainerLogs": "http://127.0.0.1:9/node/containerlogs/container_17_1/me",
}  # fmt: skip
_STATES: list[tuple[str, dict[str, Any]]] = [
    ("Pending", {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}),
    ("Running", {"running": {"startedAt": "2026-03-01T12:00:00Z"}}),
    ("Failed", {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}),
    ("Unknown", {}),
]
PODS = [
    {
        "metadata": {"name": "trips-i", "creationTimestamp": "2026-03-01T12:00:00Z",
                     "labels": {"streamwarden/incarnation": "i"}},
        "spec": {}, "status": {
            "phase": phase, "containerStatuses": [{"state": state}],
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "m"}],
        },
    }
    for phase, state in _STATES
]  # fmt: skip
ANSWERS = [{"apps": {"app": [APPLICATION]}}, {"apps": None}, *PODS, {"items": PODS}, {"message": "forbidden"}]
TRIPS = b"VendorID,lpep_pickup_datetime,fare_amount\n2,2023-03-08 00:00:00,12.5\n"


def _files(*patterns: str) -> Callable[[], list[bytes]]:
    return lambda: [path.read_bytes() for one in patterns for path in sorted(REPOSITORY.glob(one))]


@cache
def _models() -> list[bytes]:
    """Return control documents as the project writes them."""
    from tests.unit.store.made_documents import made

    return [one.model_dump_json(indent=1).encode() for one in made()]


def _answers() -> list[bytes]:
    # What is imported late counts as the first input's time.
    for one in (made := [json.dumps(one).encode() for one in ANSWERS]):
        cluster_answers(one)
    return made


TARGETS: dict[str, Target] = {
    "documents": Target(documents, _models),
    "manifest": Target(manifest, _models),
    "delta_log": Target(delta_log, lambda: [LOG]),
    "published": Target(published, lambda: [LOG]),
    "delta_checkpoint": Target(delta_checkpoint, lambda: [parquet()]),
    "offsets": Target(offsets, lambda: [OFFSETS]),
    "state": Target(state, lambda: [METADATA, SCHEMA, snapshot()]),
    "plans": Target(plans, lambda: [PLAN, READ, b"3\n2 " + PLAN, b'{"a":"b"}']),
    "configuration": Target(
        configuration, _files("config/jobs/*.yaml", "config/profiles/*.yaml", "config/alerts.yaml")
    ),
    "suites": Target(suites, _files("expectations/*.json")),
    "statements": Target(statements, lambda: list(_queries())),
    "results": Target(results, lambda: [RUN]),
    "cluster_answers": Target(cluster_answers, _answers),
    "keyed_bases": Target(keyed_bases, lambda: [chunk(1), chunk(2)]),
    "landed": Target(landed, lambda: [parquet(), TRIPS, b'{"VendorID":2,"fare_amount":12.5}\n']),
}


def _queries() -> Iterator[bytes]:
    for path in sorted(REPOSITORY.glob("expectations/*.json")):
        for one in json.loads(path.read_bytes())["expectations"]:
            if (query := one["kwargs"].get("unexpected_rows_query")) is not None:
                yield query.encode()
    yield b"a > 1 AND b IS NOT NULL"
