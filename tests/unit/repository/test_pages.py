"""Tables of docs/ that list what the library has: documents, alarms, live fields, DAGs."""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from streamwarden.airflow.describe import dag_id_of, periodic_dag_id
from streamwarden.operations.field_effects import FIELD_EFFECTS, Effect
from streamwarden.storage import LocalStorage
from streamwarden.store.documents import Document, JobDocuments
from streamwarden.supervision.alert_queue import UNWATCHED
from streamwarden.supervision.health_rules import PASSED_OVER, RULES

pytestmark = pytest.mark.unit

REPOSITORY = Path(__file__).resolve().parents[3]


def rows(page: str, first: str) -> list[list[str]]:
    """Return the rows of the table whose first column has this heading."""
    text = (REPOSITORY / "docs" / page).read_text()
    table = re.search(rf"^\| {first} \|.*\n\|[ -|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert table is not None
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in table[1].splitlines()]


def quoted(cells: list[str]) -> list[str]:
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def test_every_document_is_listed(tmp_path: Path) -> None:
    documents = JobDocuments(LocalStorage(tmp_path), "job")
    named = [name for name, value in vars(JobDocuments).items() if isinstance(value, cached_property)]
    known: list[Document[Any]] = [getattr(documents, name) for name in named]
    known += [documents.launch("ID"), documents.heartbeat("ID"), documents.progress("ID"), documents.exit("ID")]
    known += [documents.stop("ID"), documents.past_operation("ID")]
    known += [documents.totals(1)]
    # Savepoints' and the claim have no accessor there.
    names = {document.key.removeprefix("control/job/") for document in known}
    names |= {"savepoints/ID.json", "supervisor.json"}
    assert set(quoted([row[0] for row in rows("architecture.md", "document")])) == names


def test_every_alarm_is_listed() -> None:
    assert sorted(quoted([row[0] for row in rows("operations.md", "rule")])) == sorted(
        [*RULES, "driver", PASSED_OVER, UNWATCHED]
    )


def test_live_fields_are_those_that_a_driver_does_not_read() -> None:
    told = {row[0]: quoted([row[1]]) for row in rows("jobs.md", "effect")}
    live = {field for field, (effect, _) in FIELD_EFFECTS.items() if effect is Effect.LIVE}
    of_sinks = {"on_restore", "reconcile"}
    whole = {field for field in live if not field.startswith("sinks.reconcile.")}
    assert {f"sinks.{name}" if name in of_sinks else name for name in told["live"]} == whole
    others = {name for effect, names in told.items() if effect != "live" for name in names}
    assert not others & (live | {field.split(".")[0] for field in live} - {"sinks"})


def test_every_dag_is_listed() -> None:
    text = "".join(path.read_text() for path in (REPOSITORY / "dags").glob("*.py"))
    made = {*re.findall(r'dag_id="([^"]+)"', text), dag_id_of("NAME"), periodic_dag_id("NAME")}
    assert len(made) > 5 and set(quoted([row[0].split(",")[0] for row in rows("airflow.md", "DAG")])) == made
