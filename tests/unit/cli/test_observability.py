from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from streamwarden.cli.app import app
from streamwarden.formats.progress_table import ProgressTable
from streamwarden.model.record import utc_now
from streamwarden.model.status import Exit, Launch
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from tests.batches import START, made_batch, make_place
from tests.monitoring import write_running

pytestmark = pytest.mark.unit

JOB = "lamp"


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    made = make_place(tmp_path)
    spec = {
        "name": JOB,
        "module": "spark_jobs.none",
        "source": {"kind": "files", "path": "landing"},
        "sinks": [{"table": JOB, "mode": "append"}],
    }
    (made.config / "jobs" / f"{JOB}.yaml").write_text(yaml.safe_dump(spec))
    monkeypatch.setenv("STREAMWARDEN_CONFIG", str(made.config))
    monkeypatch.setenv("STREAMWARDEN_PROFILE", "test")
    monkeypatch.delenv("STREAMWARDEN_ROOT", raising=False)
    return made


def run(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == code, done.output
    return done.output


def test_progress_shows_the_newest_batches(workspace: Workspace) -> None:
    batches = [made_batch(number) for number in range(30)]
    batches[29] = made_batch(29, watermark=None, watermark_lag_s=None, rows_out=None, source=None)
    ProgressTable(workspace).append(JOB, "i1", 1, batches)
    lines = run("progress", JOB, "--last", "2").splitlines()
    assert len(lines) == 3 and lines[0].split()[:3] == ["gen", "batch", "at"]
    first = "1 28 2026-03-08 12:00:28 2.5 s 100 80 3 7 40 2026-03-08 11:30:00 1800 s 30 3.0 kB 0.7 s 1 4"
    second = "1 29 2026-03-08 12:00:29 2.5 s 100 - 3 7 40 - - 30 3.0 kB 0.7 s 1 -"
    assert [" ".join(line.split()) for line in lines[1:]] == [first, second]
    assert len(run("progress", JOB).splitlines()) == 21

    (found,) = json.loads(run("progress", JOB, "-n", "1", "--json"))
    assert (found["batch"], found["at"], found["watermark"]) == (29, (START + timedelta(seconds=29)).isoformat(), None)
    assert found["operators"][0]["metrics"]["rocksdbSstFileSize"] == 77


def test_progress_of_a_job_that_never_was_is_a_mistake_and_of_a_removed_one_is_not(workspace: Workspace) -> None:
    assert "[PROGRESS_TABLE_MISSING]" in run("progress", JOB, code=2)
    ProgressTable(workspace).append("removed", "i1", 1, [made_batch(0)])
    assert len(run("progress", "removed").splitlines()) == 2
    assert len(run("progress", JOB).splitlines()) == 1
    assert "[JOB_UNKNOWN]" in run("progress", "lmap", code=2)


def targets() -> list[tuple[str, str]]:
    found = json.loads(run("targets"))
    assert all(one["labels"]["profile"] == "test" for one in found)
    return [(one["labels"]["job"], *one["targets"]) for one in found]


def test_targets_are_what_prometheus_reads(workspace: Workspace) -> None:
    assert targets() == []
    write_running(workspace, JOB, "127.0.0.1:40123")
    assert targets() == [(JOB, "127.0.0.1:40123")]
    assert "lamp: metrics on http://127.0.0.1:40123/metrics" in run("status")


def test_a_driver_that_should_run_stays_a_target_so_that_prometheus_sees_it_down(workspace: Workspace) -> None:
    write_running(workspace, JOB, "127.0.0.1:40123")
    documents = JobDocuments(workspace.storage, JOB)
    failed = Exit(incarnation="i1", at=utc_now(), outcome="failed")
    documents.exit("i1").write(failed)
    assert targets() == [(JOB, "127.0.0.1:40123")]
    assert "metrics on" not in run("status", code=1)
    # The next one dies before it has an address.
    documents.launch("i2").write(Launch(incarnation="i2", at=utc_now(), by="test", reason="", digest=""))
    documents.exit("i2").write(failed.model_copy(update={"incarnation": "i2"}))
    assert targets() == [(JOB, "127.0.0.1:40123")]
    # Its YAML is no reason to look away, while it is wanted.
    (workspace.config / "jobs" / f"{JOB}.yaml").unlink()
    assert targets() == [(JOB, "127.0.0.1:40123")]
    documents.desired.update(lambda was: was.model_copy(update={"state": "suspended"}))  # type: ignore[union-attr]
    assert targets() == []


def test_an_address_that_another_driver_has_taken_is_not_scraped_for_two(workspace: Workspace) -> None:
    write_running(workspace, JOB, "127.0.0.1:9400")
    dead, other = JobDocuments(workspace.storage, JOB), JobDocuments(workspace.storage, "other")
    wanted, beat, lease = dead.desired.read(), dead.heartbeat("i1").read(), dead.lease.read()
    launch = dead.launch("i1").read()
    assert wanted and beat and lease and launch
    other.desired.write(wanted.model_copy(update={"job": "other"}))
    other.launch("i1").write(launch)
    other.heartbeat("i1").write(beat)
    other.lease.write(lease)
    dead.exit("i1").write(Exit(incarnation="i1", at=utc_now(), outcome="failed"))
    assert targets() == [(JOB, "127.0.0.1:0"), ("other", "127.0.0.1:9400")]


def test_targets_are_written_in_a_single_step(workspace: Workspace, tmp_path: Path) -> None:
    write_running(workspace, JOB, "127.0.0.1:40123")
    file = tmp_path / "targets.json"
    assert run("targets", "--output", str(file)) == ""
    assert file.read_text() == run("targets")
    assert file.stat().st_mode & 0o004, "Prometheus has another user"
    before = file.stat().st_ino
    run("targets", "--output", str(file))
    assert file.stat().st_ino != before, "not the file that a reader may have open"
    assert sorted(tmp_path.glob(".targets*")) == []


def test_options_of_targets_that_make_no_sense_are_refused(workspace: Workspace, tmp_path: Path) -> None:
    file = str(tmp_path / "targets.json")

    def refused(*words: str) -> str:
        # Shown in a box of 80 columns.
        return " ".join(run("targets", *words, code=2).replace("│", " ").split())

    assert "needs --output" in refused("--every", "15s")
    assert "not a duration" in refused("--output", file, "--every", "15")
    assert "less than 1s" in refused("--output", file, "--every", "1ms")
    assert "is no folder" in refused("--output", str(tmp_path / "none" / "targets.json"))
    (tmp_path / "targets.json").mkdir()
    assert "Is a directory" in refused("--output", file)


def test_housekeeping_of_all_jobs_looks_after_the_table(workspace: Workspace) -> None:
    table = ProgressTable(workspace)
    for number in range(3):
        table.append(JOB, "i1", 1, [made_batch(number, at=utc_now() - timedelta(days=100 if number == 0 else 0))])
    assert run("housekeeping", JOB) == "lamp: nothing to do\n"
    assert len(table.read(JOB)) == 3
    done = json.loads(run("housekeeping", "--json"))
    assert done["job_progress"] == {"rows_deleted": 1, "files_joined": 2, "files_removed": 0}
    assert set(json.loads(run("housekeeping", "--json"))) == {JOB}
    assert len(table.read(JOB)) == 2


def test_a_log_in_json_is_shown_as_text(workspace: Workspace) -> None:
    write_running(workspace, JOB, "")
    folder = workspace.log_dir(JOB, "i1")
    folder.mkdir(parents=True)
    record = {"time": "2026-03-08T12:00:00.000Z", "level": "info", "job": JOB, "incarnation": "i1", "batch": 3}
    line = json.dumps({**record, "message": "three rows"}) + "\n"
    (folder / "driver.log").write_text("as text\n" + line)
    (folder / "console.log").write_text(line)
    text = "2026-03-08T12:00:00.000Z INFO lamp i1 three rows\n"
    assert run("logs", JOB) == "as text\n" + text
    assert run("logs", JOB, "--lines", "1") == text
    assert run("logs", JOB, "--raw", "-n", "1") == line
    assert run("logs", JOB, "--source", "console") == line, "a job's own prints are nobody else's affair"
