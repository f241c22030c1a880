"""What a replay of quarantined rows refuses, and what must not change, come twice or be lost."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from streamwarden.cli.quarantine import _corrected
from streamwarden.errors import StreamwardenError
from streamwarden.model import exact_json
from streamwarden.operations import source_rows
from streamwarden.operations.quarantine import RowState, job_of_table, specs_of, trace
from streamwarden.operations.source_rows import SourceRows
from streamwarden.savepoints.compatibility import constant
from streamwarden.store.layout import CONTROL
from tests.unit.operations.test_quarantine import AT, EVENTS, Place

pytestmark = pytest.mark.unit

TABLE = {"kind": "delta", "table": "events"}
FILES = {"kind": "files", "path": "landing"}
MAIN = {"table": "t", "mode": "append"}
KEPT = {"table": "t_quarantine", "output": "refused", "mode": "append"}


def refusal(action: Callable[[], object]) -> StreamwardenError:
    with pytest.raises(StreamwardenError) as raised:
        action()
    return raised.value


@pytest.mark.parametrize(
    ("fields", "words", "remedy"),
    [
        ({"module": "m"}, "m does not declare", 'SOURCE_ROWS = ("main",)'),
        ({"sinks": [{**MAIN, "output": "refused"}]}, "does not declare", 'SOURCE_ROWS = ("refused",)'),
        ({"sinks": [MAIN, KEPT, {**MAIN, "table": "b", "output": "b"}]}, "output b may have the row", "table t"),
        (
            {
                "sinks": [
                    MAIN,
                    KEPT,
                    {"kind": "kafka", "topic": "b", "output": "b", "bootstrap_servers": "one:9092", "keys": ["id"]},
                ]
            },
            "output b may have the row",
            "table t",
        ),
        ({"sinks": [{**MAIN, "mode": "upsert", "keys": ["n"]}, KEPT]}, "t is upserted", "newest row"),
    ],
)
def test_a_row_that_another_output_or_key_has_is_refused(
    tmp_path: Path, fields: dict[str, Any], words: str, remedy: str
) -> None:
    place = Place(tmp_path, FILES)
    place.job("job", **{"source": FILES, "sinks": [MAIN, KEPT], "folder": tmp_path, **fields})
    place.by_rule("r1", {"n": -1}, "a.jsonl", 0)
    error = refusal(lambda: place.replay({"r1": {"n": 1}}))
    assert error.code == "QUARANTINE_NOT_REPLAYABLE" and words in error.what and remedy in error.remedy
    assert place.edits() == [] and not place.landing.exists()


def test_a_topic_of_the_judged_output_is_no_obstacle(tmp_path: Path) -> None:
    place = Place(tmp_path, FILES)
    topic = {"kind": "kafka", "topic": "b", "bootstrap_servers": "one:9092", "keys": ["id"]}
    place.job("job", source=FILES, sinks=[MAIN, KEPT, topic], folder=tmp_path)
    place.by_rule("r1", {"n": -1}, "a.jsonl", 0)
    assert place.replay({"r1": {"n": 1}})[0].sent


def test_the_trips_are_declared_as_rows_of_their_files() -> None:
    assert constant("spark_jobs.ingest_trips", "SOURCE_ROWS") == ("main",)


def test_a_row_that_a_batch_wrote_again_is_one_row() -> None:
    row = {"row_id": "r1", "source_file": "a", "source_row": 0, "raw": "{}", "rules": ["x"]}
    of_topic = {"row_id": "r2", "source_offset": "t/0/7", "raw": "{}"}
    unknown = {"row_id": "r3", "raw": "{}"}
    edit = {"row_id": "r1", "attempt": 1, "content": None, "sent_as": "f", "number": 0}
    found = trace([row, of_topic, unknown, row, of_topic, unknown], [edit])
    assert [(one.id, one.state) for one in found] == [
        ("r1", RowState.REPLAYED),
        ("r2", RowState.OPEN),
        ("r3", RowState.OPEN),
        ("r3-2", RowState.OPEN),
    ] or sorted(one.id for one in found) == ["r1", "r2", "r3", "r3-2"]


def test_rows_are_replayed_after_the_last_rule_is_removed(tmp_path: Path) -> None:
    place = Place(tmp_path, FILES)
    place.job("job", source=FILES, sinks=[MAIN], folder=tmp_path)
    place.by_rule("r1", {"n": -1}, "a.jsonl", 0)
    assert job_of_table(place.workspace, "t_quarantine").name == "job"
    assert place.replay({"r1": None})[0].sent


def test_a_replay_that_was_sent_is_never_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path, TABLE)
    place.write("events", [{"k": "a", "n": 1.0, "at": AT}], EVENTS)
    place.refused('{"k":"b","n":-1.0}', '{"k":"c","n":-1.0}')
    first, second = place.rows()
    place.replay({first: {"k": "b", "n": 1}})
    # The table is created anew: it knows no transaction ids.
    shutil.rmtree(place.workspace.table("events"))
    place.write("events", [{"k": "z", "n": 1.0, "at": AT}], EVENTS)
    assert [one.sent for one in place.replay({first: {"k": "b", "n": 1}})] == [False]
    place.replay({second: {"k": "c", "n": 1}})
    assert sorted(row["k"] for row in place.events()) == ["c", "z"]
    assert len(place.edits()) == 2


def test_a_landing_folder_that_another_job_reads_is_refused(tmp_path: Path) -> None:
    place = Place(tmp_path, FILES)
    sinks = [{"table": "u", "mode": "append"}]
    place.job("other", source={"kind": "files", "path": "./landing/"}, sinks=sinks, folder=tmp_path)
    place.by_rule("r1", {"n": -1}, "a.jsonl", 0)
    error = refusal(lambda: place.replay({"r1": {"n": 1}}))
    assert error.code == "QUARANTINE_NOT_REPLAYABLE" and "job other reads it, too" in error.what
    assert place.edits() == []


def test_values_of_a_delta_source_stay_as_they_are(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("k", pa.string()),
            ("d", pa.decimal128(20, 2)),
            ("x", pa.float64()),
            ("day", pa.date32()),
            ("at", pa.timestamp("us")),
            ("s", pa.struct([("m", pa.decimal128(20, 2))])),
        ]
    )
    exact = Decimal("123456789012345678.91")
    row = {"k": "é", "d": exact, "x": 0.1, "day": date(2024, 2, 29), "at": datetime(2024, 5, 1, 1, 2, 3, 456789)}
    row["s"] = {"m": exact}
    place = Place(tmp_path, TABLE)
    place.write("events", [], schema)
    raw = (
        '{"k":"é","d":123456789012345678.91,"x":0.1,"day":"2024-02-29","at":"2024-05-01T01:02:03.456789",'
        '"s":{"m":123456789012345678.91}}'
    )
    place.refused(raw, raw.replace("é", "b"))
    one, other = place.rows()
    # As the commands pass it: printed by `show`, and read by `replay --rows`.
    lines = tmp_path / "rows.jsonl"
    lines.write_text(exact_json.dumps({"id": one, "row": place.rows()[one].row}) + "\n")
    place.replay(_corrected(lines))
    place.replay({other: None})
    assert sorted(place.events(), key=lambda each: each["k"]) == [{**row, "k": "b"}, row]
    # A row with a date is recognised when it fails again.
    place.refused(raw)
    assert sorted((found.state, found.attempts) for found in place.rows().values()) == [
        (RowState.FAILED_AGAIN, 1),
        (RowState.REPLAYED, 1),
    ]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (pa.binary(), "column v (binary)"),
        (pa.map_(pa.string(), pa.int64()), "column v (map"),
        (pa.list_(pa.binary()), "column v (list"),
    ],
)
def test_columns_that_json_does_not_keep_are_refused_by_name(tmp_path: Path, kind: pa.DataType, words: str) -> None:
    place = Place(tmp_path, TABLE)
    place.write("events", [], pa.schema([("k", pa.string()), ("v", kind)]))
    place.refused('{"k":"b"}')
    (name,) = place.rows()
    error = refusal(lambda: place.replay({name: {"k": "b"}}))
    assert error.code == "QUARANTINE_NOT_REPLAYABLE" and words in error.what
    assert place.edits() == []


def test_many_rows_are_parsed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path, TABLE)
    place.write("events", [{"k": "a", "n": 1.0, "at": AT}], EVENTS)
    parses = []
    real = source_rows.arrow_json.read_json
    monkeypatch.setattr(source_rows.arrow_json, "read_json", lambda *a, **k: parses.append(1) or real(*a, **k))
    texts: list[str | None] = [json.dumps({"k": str(number)}) for number in range(5000)]
    rows = SourceRows(place.workspace, "events")
    alone = rows.hashes(texts[:1])
    parses.clear()
    found = rows.hashes(texts)
    assert len(parses) == 1 and len(set(found)) == 5000 and found[:1] == alone
    texts[7:11] = ["no JSON", None, '{"k":"1"}\n{"k":"2"}', " "]
    texts[20] = '{"k":"1"}{"k":"2"}'
    mixed = rows.hashes(texts)
    assert [number for number, one in enumerate(mixed) if one is None] == [7, 8, 9, 10, 20]
    assert [mixed[number] for number in (6, 11, 21, 4999)] == [found[number] for number in (6, 11, 21, 4999)]
    assert rows.hashes(['{"k":"' + "x" * 3_000_000 + '"}'])[0] is not None


def test_equal_rows_of_a_replay_are_counted_in_linear_time(tmp_path: Path) -> None:
    place = Place(tmp_path, TABLE)
    place.write("events", [{"k": "a", "n": 1.0, "at": AT}], EVENTS)
    place.refused(*[json.dumps({"k": f"{number}"}) for number in range(6000)])
    began = time.process_time()
    place.replay({name: {"k": "same"} for name in place.rows()})
    assert time.process_time() - began < 20
    assert sorted(entry["seen"] for entry in place.edits()) == list(range(6000))


def test_a_job_whose_document_cannot_be_read_is_not_overlooked_as_a_writer(tmp_path: Path) -> None:
    place = Place(tmp_path, TABLE)
    place.write("events", [{"k": "a", "n": 1.0, "at": AT}], EVENTS)
    place.refused('{"k":"b"}')
    (name,) = place.rows()
    (tmp_path / "config" / "jobs" / "bad.yaml").write_text(yaml.safe_dump({"name": "bad"}))
    assert [spec.name for spec in specs_of(place.workspace)] == ["job"]
    folder = place.workspace.root / CONTROL / "writer"
    folder.mkdir(parents=True)
    (folder / "desired.json").write_text("{")
    refusal(lambda: place.replay({name: {"k": "b"}}))
    assert place.edits() == [] and len(place.events()) == 1


def test_rows_from_before_a_new_column_are_replayed_and_recognised(tmp_path: Path) -> None:
    place = Place(tmp_path, TABLE)
    place.write("events", [{"k": "a", "n": 1.0, "at": AT}], EVENTS)
    raw = {"k": "b", "n": -1.0, "at": "2024-05-01T12:30:00.250000Z"}
    place.by_rule("r1", raw, "", 0)
    place.replay({"r1": {**raw, "n": -2}})
    wider = pa.schema([*EVENTS, ("new", pa.string())])
    rows = pa.Table.from_pylist([{"k": "c", "n": 1.0, "at": AT, "new": "x"}], wider)
    write_deltalake(place.workspace.table("events"), rows, mode="append", schema_mode="merge")
    assert "new" in DeltaTable(place.workspace.table("events")).to_pyarrow_table().column_names
    place.by_rule("other", {**raw, "n": -2.0}, "", 0)
    (found,) = place.rows().values()
    assert (found.id, found.state) == ("r1", RowState.FAILED_AGAIN)
    assert place.replay({"r1": None})[0].sent


def test_a_row_without_a_required_column_is_refused_before_it_is_recorded(tmp_path: Path) -> None:
    place = Place(tmp_path, TABLE)
    place.write("events", [], pa.schema([pa.field("k", pa.string(), nullable=False), ("n", pa.float64())]))
    place.refused('{"n":-1.0}')
    (name,) = place.rows()
    error = refusal(lambda: place.replay({name: {"n": 1}}))
    assert error.code == "QUARANTINE_ROWS_INVALID" and "column k" in error.what and place.edits() == []
