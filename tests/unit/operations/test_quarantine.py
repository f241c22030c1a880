"""Correcting and replaying quarantined rows, with a stand-in for the job that reads them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from streamwarden.cli.app import app
from streamwarden.errors import StreamwardenError
from streamwarden.formats.quarantine_edits import EditsTable
from streamwarden.landing.file import LandedFile
from streamwarden.landing.plans import plans_of
from streamwarden.operations import quarantine_replay
from streamwarden.operations.quarantine import Quarantined, RowState, quarantined_rows
from streamwarden.operations.quarantine_replay import Replayed, replay_rows
from streamwarden.operations.source_rows import content_of
from streamwarden.store.workspace import Workspace, open_workspace

pytestmark = pytest.mark.unit

# Declares SOURCE_ROWS. A replay reads it without an import.
MODULE = "tests.integration.jobs.amounts"
TIME = pa.timestamp("us", "UTC")
REFUSED = pa.schema([("source", pa.string()), ("raw", pa.string()), ("reasons", pa.list_(pa.string()))])
BY_RULE = pa.schema(
    [
        ("row_id", pa.string()),
        ("batch", pa.int64()),
        ("quarantined_at", TIME),
        ("rules", pa.list_(pa.string())),
        ("reasons", pa.list_(pa.string())),
        ("source_file", pa.string()),
        ("source_row", pa.int64()),
        ("raw", pa.string()),
    ]
)
EVENTS = pa.schema([("k", pa.string()), ("n", pa.float64()), ("at", TIME)])
AT = datetime(2024, 5, 1, 12, 30, 0, 250_000, tzinfo=UTC)


class Place:
    """A workspace with a job `job`, which writes `t` and `t_quarantine`."""

    def __init__(self, folder: Path, source: dict[str, Any]) -> None:
        (folder / "config" / "jobs").mkdir(parents=True)
        (folder / "config" / "profiles").mkdir()
        (folder / "config" / "profiles" / "test.yaml").write_text(yaml.safe_dump({"name": "test", "root": "root"}))
        sinks = [
            {"table": "t", "mode": "append"},
            {"table": "t_quarantine", "output": "refused", "mode": "append"},
        ]
        self.job("job", source=source, sinks=sinks, folder=folder)
        self.workspace: Workspace = open_workspace("test", config=folder / "config")
        self.landing = self.workspace.root / "landing"

    def job(self, name: str, *, folder: Path, **fields: Any) -> None:
        content = {"name": name, "module": MODULE, **fields}
        (folder / "config" / "jobs" / f"{name}.yaml").write_text(yaml.safe_dump(content))

    def write(self, table: str, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
        write_deltalake(self.workspace.table(table), pa.Table.from_pylist(rows, schema), mode="append")

    def by_rule(self, name: str, raw: Any, file: str, row: int, rule: str = "t.n") -> None:
        told = {"row_id": name, "batch": 3, "quarantined_at": AT, "rules": [rule], "reasons": [f"{rule}: Words."]}
        self.write("t_quarantine", [{**told, "source_file": file, "source_row": row, "raw": json.dumps(raw)}], BY_RULE)

    def refused(self, *raws: str) -> None:
        self.write("t_quarantine", [{"source": "events", "raw": raw, "reasons": ["n is bad"]} for raw in raws], REFUSED)

    def rows(self) -> dict[str, Quarantined]:
        spec = self.workspace.job("job")
        content = content_of(self.workspace, spec)
        return {one.id: one for one in quarantined_rows(self.workspace, "t_quarantine", content=content)}

    def replay(self, corrected: dict[str, Any], note: str = "typo", by: str = "ann") -> list[Replayed]:
        return replay_rows(self.workspace, "t_quarantine", corrected, by=by, note=note)

    def edits(self) -> list[dict[str, Any]]:
        return EditsTable(self.workspace).of("t_quarantine")

    def landed(self) -> dict[str, list[dict[str, Any]]]:
        return {one.name: [json.loads(line) for line in one.read_text().splitlines()] for one in self.landing.iterdir()}

    def events(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = DeltaTable(self.workspace.table("events")).to_pyarrow_table().to_pylist()
        return found


@pytest.fixture
def files(tmp_path: Path) -> Place:
    return Place(tmp_path, {"kind": "files", "path": "landing"})


@pytest.fixture
def table(tmp_path: Path) -> Place:
    place = Place(tmp_path, {"kind": "delta", "table": "events"})
    place.write("events", [{"k": "a", "n": 1.0, "at": AT}], EVENTS)
    return place


def test_a_corrected_row_lands_once_with_its_record(files: Place) -> None:
    files.by_rule("r1", {"n": -1}, "a.jsonl", 0)
    files.by_rule("r2", {"n": -2}, "a.jsonl", 1)
    (done,) = files.replay({"r1": {"n": 1, "source_file": "a.jsonl", "source_row": 0}})
    assert (done.rows, done.again, done.sent) == (1, 0, True)
    assert files.landed() == {done.sent_as: [{"n": 1}]}
    (edit,) = files.edits()
    assert (edit["row_id"], edit["attempt"], edit["by"], edit["note"]) == ("r1", 1, "ann", "typo")
    assert (json.loads(edit["before"]), json.loads(edit["after"])) == ({"n": -1}, {"n": 1})
    assert {name: one.state for name, one in files.rows().items()} == {"r1": RowState.REPLAYED, "r2": RowState.OPEN}
    # The same call again completes the same replay, and another edit of the row is refused.
    assert [one.sent for one in files.replay({"r1": {"n": 1}})] == [False]
    with pytest.raises(StreamwardenError, match="row r1 by ann") as raised:
        files.replay({"r2": {"n": 2}, "r1": {"n": 3}})
    assert raised.value.code == "QUARANTINE_REPLAYED"
    assert len(files.edits()) == 1 and len(files.landed()) == 1


def test_a_replay_that_fails_again_returns_with_a_count(files: Place) -> None:
    files.by_rule("r1", {"n": -1}, "a.jsonl", 0)
    (first,) = files.replay({"r1": {"n": -3}})
    files.by_rule("other", {"n": -3}, first.sent_as, 0)
    (found,) = files.rows().values()
    assert (found.id, found.state, found.attempts, found.row) == ("r1", RowState.FAILED_AGAIN, 1, {"n": -3})
    (second,) = files.replay({"r1": {"n": -3}})
    assert (second.again, second.sent) == (1, True) and second.sent_as != first.sent_as
    (found,) = files.rows().values()
    assert (found.state, found.attempts) == (RowState.REPLAYED, 2)
    assert [edit["attempt"] for edit in files.edits()] == [1, 2]


def test_a_replay_that_is_refused_as_a_file_fails_for_each_row(files: Place) -> None:
    files.by_rule("r1", {"n": -1}, "a.jsonl", 0)
    files.by_rule("r2", {"n": -2}, "a.jsonl", 1)
    (done,) = files.replay({"r1": {"x": 1}, "r2": {"x": 2}})
    row = {"source_file": done.sent_as, "source_row": None, "raw": None, "reasons": ["FILE_FOREIGN: no trips"]}
    files.write("t_quarantine", [row], BY_RULE)
    found = files.rows()
    assert {name: (one.state, one.row) for name, one in found.items()} == {
        "r1": (RowState.FAILED_AGAIN, {"x": 1}),
        "r2": (RowState.FAILED_AGAIN, {"x": 2}),
    }
    assert found["r1"].causes == ("FILE_FOREIGN",)


@pytest.mark.parametrize("same_call", [True, False])
def test_a_killed_call_is_completed(files: Place, monkeypatch: pytest.MonkeyPatch, same_call: bool) -> None:
    files.by_rule("r1", {"n": -1}, "a.jsonl", 0)
    files.by_rule("r2", {"n": -2}, "a.jsonl", 1)
    with monkeypatch.context() as patch:
        patch.setattr(quarantine_replay, "_send", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        patch.setattr(quarantine_replay, "_complete", lambda *_: [])
        with pytest.raises(KeyboardInterrupt):
            files.replay({"r1": {"n": 1}})
    assert not files.landing.exists() and len(files.edits()) == 1
    done = files.replay({"r1": {"n": 1}} if same_call else {"r2": {"n": 2}})
    assert len(files.edits()) == (1 if same_call else 2)
    landed = sorted(row["n"] for rows in files.landed().values() for row in rows)
    assert landed == ([1] if same_call else [1, 2])
    assert len(done) == (1 if same_call else 2)


def test_a_file_that_was_read_and_archived_does_not_land_again(files: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    files.by_rule("r1", {"n": -1}, "a.jsonl", 0)
    with monkeypatch.context() as patch:
        patch.setattr(EditsTable, "mark_sent", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            files.replay({"r1": {"n": 1}})
    (file,) = files.landing.iterdir()
    plans_of(files.workspace, "job").create(0, [LandedFile(file.name, str(files.landing), 9, 1)])
    file.unlink()
    assert [one.sent for one in files.replay({"r1": {"n": 1}})] == [False]
    assert not files.landed() and files.edits()[0]["sent"]


def test_of_many_replays_of_a_row_at_once_one_happens(files: Place) -> None:
    files.by_rule("r1", {"n": -1}, "a.jsonl", 0)

    def attempt(number: int) -> str | None:
        try:
            files.replay({"r1": {"n": number}}, by=f"person {number}")
        except StreamwardenError as error:
            return error.code
        return None

    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(attempt, range(1, 9)))
    assert sorted(map(str, codes)) == ["None", *["QUARANTINE_REPLAYED"] * 7]
    assert len(files.edits()) == len(files.landed()) == 1


def test_bad_input_of_a_table_is_appended_once(table: Place) -> None:
    bad = {"k": "b", "n": -1.0, "at": "2024-05-01T12:30:00.250000Z"}
    table.refused(json.dumps(bad), json.dumps(bad))
    (first, second) = table.rows()
    assert second == f"{first}-2"
    (done,) = table.replay({first: {**bad, "n": 2}})
    assert (done.sent_as, done.sent) == ("events", True)
    assert [one.sent for one in table.replay({first: {**bad, "n": 2}})] == [False]
    assert table.events()[1:] == [{"k": "b", "n": 2.0, "at": AT}] or table.events()[:1] == [
        {"k": "b", "n": 2.0, "at": AT}
    ]
    # It comes back as Spark writes it.
    table.refused('{"k":"b","n":2.0,"at":"2024-05-01T12:30:00.250000Z"}')
    found = table.rows()
    assert {name: (one.state, one.attempts) for name, one in found.items()} == {
        first: (RowState.FAILED_AGAIN, 1),
        second: (RowState.OPEN, 0),
    }
    table.replay({first: None}, note="the job was changed")
    assert table.rows()[first].state is RowState.REPLAYED and len(table.events()) == 3
    # Unchanged, it fails once more.
    table.refused('{"k":"b","n":2.0,"at":"2024-05-01T12:30:00.250000Z"}')
    assert (table.rows()[first].state, table.rows()[first].attempts) == (RowState.FAILED_AGAIN, 2)


@pytest.mark.parametrize("same", [True, False])
def test_an_append_that_another_writer_overtakes(table: Place, monkeypatch: pytest.MonkeyPatch, same: bool) -> None:
    table.refused(json.dumps({"k": "b", "n": -1.0}))
    (name,) = table.rows()
    real, calls = write_deltalake, []

    def overtaken(opened: DeltaTable, rows: pa.Table, **given: Any) -> None:
        calls.append(opened.version())
        if len(calls) == 1:
            # Another call for the same replay, or the writer of the table.
            real(opened.table_uri, rows, **(given if same else {"mode": "append"}))
        real(opened, rows, **given)

    monkeypatch.setattr(quarantine_replay, "write_deltalake", overtaken)
    (done,) = table.replay({name: {"k": "b", "n": 2.0}})
    assert (done.sent, calls) == (not same, [0])
    assert [row["k"] for row in table.events()].count("b") == (1 if same else 2)


@pytest.mark.parametrize(
    ("row", "words"),
    [({"k": "b", "m": 1}, "no column m"), ({"n": "many"}, "row"), ("text", "no JSON object"), ([1], "no JSON object")],
)
def test_a_row_that_the_source_cannot_take_is_refused_before_anything_is_sent(
    table: Place, row: Any, words: str
) -> None:
    table.refused('{"k":"b","n":-1.0}')
    (name,) = table.rows()
    with pytest.raises(StreamwardenError, match=words) as raised:
        table.replay({name: row})
    assert raised.value.code == "QUARANTINE_ROWS_INVALID"
    assert table.edits() == [] and len(table.events()) == 1


def test_what_cannot_go_through_the_job_again_is_refused(tmp_path: Path) -> None:
    topic = Place(tmp_path / "a", {"kind": "kafka", "topic": "events", "bootstrap_servers": "one:9092"})
    topic.refused('{"k":"b"}')
    owned = Place(tmp_path / "b", {"kind": "delta", "table": "events"})
    owned.write("events", [{"k": "a", "n": 1.0, "at": AT}], EVENTS)
    owned.refused('{"k":"b"}')
    owned.job(
        "writer",
        source={"kind": "files", "path": "x"},
        sinks=[{"table": "events", "mode": "append"}],
        folder=tmp_path / "b",
    )
    shaped = Place(tmp_path / "c", {"kind": "delta", "table": "events"})
    shaped.write("events", [{"k": "a", "n": 1.0, "at": AT}], EVENTS)
    shaped.by_rule("r1", {"window": 1, "total": 2}, "", 0)
    whole = Place(tmp_path / "d", {"kind": "files", "path": "landing"})
    row = {"row_id": "r1", "source_file": "a", "source_row": None, "raw": None, "reasons": ["FILE_UNREADABLE: no"]}
    whole.write("t_quarantine", [row], BY_RULE)
    for place, words in (
        (topic, "reads a topic"),
        (owned, "is written by job writer"),
        (shaped, "has no k, which table events has"),
        (whole, "refused as a whole"),
    ):
        (name,) = place.rows()
        with pytest.raises(StreamwardenError, match=words) as raised:
            place.replay({name: {"k": "b"}})
        assert raised.value.code == "QUARANTINE_NOT_REPLAYABLE"


def test_the_commands(files: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMWARDEN_CONFIG", str(files.workspace.config))
    monkeypatch.setenv("STREAMWARDEN_PROFILE", "test")
    files.by_rule("r1", {"n": -1}, "a.jsonl", 0)
    files.by_rule("r2", {"n": None}, "a.jsonl", 1, rule="t.there")
    runner = CliRunner()

    def call(*words: str, code: int = 0) -> str:
        found = runner.invoke(app, ["quarantine", *words])
        assert found.exit_code == code, found.output
        return found.stdout

    assert json.loads(call("list", "t", "--json")) == [
        {"table": "t_quarantine", "rule": "t.n", "open": 1, "replayed": 0, "failed_again": 0},
        {"table": "t_quarantine", "rule": "t.there", "open": 1, "replayed": 0, "failed_again": 0},
    ]
    (line,) = [json.loads(one) for one in call("show", "t", "--rule", "t.n").splitlines()]
    assert (line["id"], line["row"], line["reasons"]) == ("r1", {"n": -1}, ["t.n: Words."])
    edited = tmp_path / "rows.jsonl"
    edited.write_text(json.dumps({**line, "row": {"n": 1}}) + "\n")
    (done,) = json.loads(call("replay", "t", "--rows", str(edited), "--note", "sign", "--json"))
    assert done["rows"] == 1
    assert call("show", "t", "--rule", "t.n") == ""
    (done,) = json.loads(call("replay", "t", "--unchanged", "--rule", "t.there", "--note", "rule", "--json"))
    files.by_rule("x", {"n": None}, done["sent_as"], 0, rule="t.there")
    counted = {row["rule"]: row for row in json.loads(call("list", "--json", code=1))}
    assert (counted["t.n"]["replayed"], counted["t.there"]["failed_again"]) == (1, 1)
    edited.write_text('{"id": "r2"}\n')
    call("replay", "t", "--rows", str(edited), "--note", "x", code=2)
    call("replay", "nothing", "--rows", str(edited), "--note", "x", code=2)
