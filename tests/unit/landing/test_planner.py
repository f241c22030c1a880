from __future__ import annotations

import dataclasses
import json
import os
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamwarden.cli.landing import _spec as listed
from streamwarden.errors import StreamwardenError
from streamwarden.landing.file import LandedFile, LandedFileChanged, LandedFileGone, shown
from streamwarden.landing.inspect import FileState, ask_reread, landed_files
from streamwarden.landing.plans import plans_of
from streamwarden.model.progress import SourceProgress
from streamwarden.storage import S3Location
from streamwarden.store.documents import JobDocuments
from tests.batches import made_desired
from tests.unit.landing.conftest import OLD_S, Landing

pytestmark = pytest.mark.unit

ODD = ["d[1].bin", "b{x}.txt", "q?.txt", "st*r.txt", "back\\slash", "10:00.csv", "a\nb", "per%20cent #1", "ü", b"\xff"]


def offset(number: int) -> str:
    return json.dumps({"logOffset": number})


def states(landing: Landing) -> dict[str, FileState]:
    return {one.name: one.state for one in landed_files(landing.workspace, landing.spec())}


def test_every_name_and_every_time_is_planned_once(landing: Landing) -> None:
    for number, name in enumerate(ODD):
        landing.land(name, at_s=[1, 4_000_000_000, OLD_S][number % 3])
    # One in the future may be half written, for all that its time tells: it waits for a second look.
    landing.look_twice()
    assert sorted(name for files in landing.names() for name in files) == sorted(map(os.fsdecode, ODD))
    again = landing.planner()
    assert [again.look(), again.look()] == [0, 0]


def test_a_plan_is_a_batch_of_so_many_files_and_bytes(landing: Landing) -> None:
    for number in range(5):
        landing.land(f"{number}", at_s=OLD_S + number)
    landing.land("large", b"x" * 5000, at_s=OLD_S + 9)
    landing.land("last", b"x" * 1000, at_s=OLD_S + 10)
    landing.look_twice(max_files_per_batch=2, max_batch_size="2k")
    assert landing.names() == [["0", "1"], ["2", "3"], ["4"], ["large"], ["last"]]


def test_what_fills_no_batch_waits_for_its_trigger_and_for_the_plan_before_it(landing: Landing) -> None:
    planner = landing.planner(max_files_per_batch=2)
    landing.land("a")
    assert planner.look(rest=False) == 0
    assert planner.look() == 1
    landing.land("b")
    assert planner.look() == 0, "the plan of `a` waits"
    landing.land("c")
    assert planner.look(rest=False) == 1, "two are a batch"
    landing.land("d")
    landing.take_plan(0)
    landing.take_plan(1)
    assert planner.after(None, offset(0)) == SourceProgress(unit="files", taken=1, pending=2, cut=True)
    assert planner.after(offset(0), offset(1)) == SourceProgress(unit="files", taken=2, pending=0)
    assert planner.look() == 1
    assert landing.names() == [["a"], ["b", "c"], ["d"]]


def test_a_file_that_is_being_written_is_left_for_the_next_look(landing: Landing) -> None:
    planner = landing.planner()
    landing.land("a", b"half", at_s=time.time())
    assert planner.look() == 0
    assert planner.unsettled
    landing.land("a", b"half and more", at_s=time.time())
    assert planner.look() == 0
    assert planner.look() == 1
    assert not planner.unsettled
    assert landing.plans()[0][0].length == len(b"half and more")


def test_a_file_that_waits_for_a_plan_is_not_overtaken_by_the_next_one(landing: Landing) -> None:
    planner = landing.planner()
    landing.land("first")
    assert planner.look() == 1
    landing.land("a", at_s=time.time())
    assert planner.look() == 0
    landing.land("b", at_s=time.time() + 0.01)
    assert planner.look() == 0, "`a` is complete, and waits for the plan of `first`"
    landing.take_plan(0)
    planner.after(None, offset(0))
    assert planner.look() == 1
    assert landing.names() == [["first"], ["a", "b"]]


def test_the_files_of_a_job_without_a_yaml_are_listed(landing: Landing) -> None:
    spec = landing.spec()
    JobDocuments(landing.workspace.storage, "lines").desired.write(made_desired(spec))
    (landing.workspace.config / "jobs").mkdir()
    assert listed(landing.workspace, None) == listed(landing.workspace, "lines") == spec


def test_links_pipes_and_large_files_are_planned_to_be_refused(landing: Landing) -> None:
    os.mkfifo(landing.folder / "pipe")
    (landing.folder / "broken").symlink_to("nowhere")
    landing.land("large", b"x" * 2000)
    landing.land("target", b"x")
    (landing.folder / "link").symlink_to("target")
    landing.look_twice(max_file_size="1k")
    reasons = {file.name: (file.refused or "").partition(":")[0] for files in landing.plans() for file in files}
    unreadable = "FILE_UNREADABLE"
    assert reasons == {"pipe": unreadable, "broken": unreadable, "large": "FILE_TOO_LARGE", "target": "", "link": ""}


def test_hidden_files_and_folders_are_not_read_and_shown(landing: Landing) -> None:
    for name in ("day=1/deep=2/a", "deep/b", ".c", "_d", "e._COPYING_", "f"):
        landing.land(name)
    landing.planner().look()
    assert landing.names() == [["day=1/deep=2/a", "f"]]
    assert {name for name, state in states(landing).items() if state is FileState.NOT_READ} == {
        "deep/", ".c", "_d", "e._COPYING_"
    }  # fmt: skip


def test_a_replaced_file_is_told_and_read_again_when_asked(landing: Landing) -> None:
    landing.land("a", b"old")
    landing.land("b")
    planner = landing.planner()
    planner.look()
    landing.take_plan(0)
    planner.after(None, offset(0))
    landing.land("a", b"new!")
    assert planner.look() == 0
    assert planner.state().first == ["a was replaced after it had been read"]
    assert states(landing) == {"a": FileState.REPLACED, "b": FileState.READ}
    ask_reread(landing.workspace, landing.spec(), ["a"], by="test")
    assert planner.look() == 1
    assert planner.state().told == 0
    assert [(file.label, file.length) for file in landing.plans()[1]] == [("a#2", 4)]
    # The request is gone once the plan is there; a driver that died between the two finds it done.
    planner.look()
    assert landing.planner().look() == 0
    assert states(landing)["a"] is FileState.WAITING


def test_a_reread_of_a_file_that_is_gone_meanwhile_is_over(landing: Landing) -> None:
    landing.land("a")
    planner = landing.planner()
    planner.look()
    ask_reread(landing.workspace, landing.spec(), ["a"], by="test")
    (landing.folder / "a").unlink()
    assert planner.look() == 0
    assert landing.workspace.storage.list("control/lines/rereads") == []
    landing.land("a", b"back")
    planner.look()
    assert planner.state().first == ["a was replaced after it had been read"]


def test_a_file_that_several_ask_for_is_read_once_more(landing: Landing) -> None:
    landing.land("a")
    planner = landing.planner()
    planner.look()
    landing.take_plan(0)
    planner.after(None, offset(0))
    for _ in range(3):
        ask_reread(landing.workspace, landing.spec(), ["a"], by="test")
    planner.look()
    planner.look()
    assert [[file.label for file in files] for files in landing.plans()] == [["a"], ["a#2"]]
    assert landing.workspace.storage.list("control/lines/rereads") == []


def test_a_file_that_is_being_replaced_is_not_read_again_yet(landing: Landing) -> None:
    landing.land("a")
    planner = landing.planner()
    planner.look()
    landing.take_plan(0)
    planner.after(None, offset(0))
    ask_reread(landing.workspace, landing.spec(), ["a"], by="test")
    landing.land("a", b"half", at_s=time.time())
    assert planner.look() == 0
    landing.land("a", b"half and more", at_s=time.time())
    assert planner.look() == 0
    assert planner.look() == 1
    assert landing.plans()[1][0].length == len(b"half and more")


def test_odd_links_and_closed_folders_hold_nothing_else_up(landing: Landing) -> None:
    landing.land("good")
    landing.land("k=1/inner")
    (landing.folder / "self").symlink_to("self")
    (landing.folder / "through").symlink_to("/etc/passwd/x")
    (landing.folder / "long").symlink_to("x" * 300)
    (landing.folder / "p=1").symlink_to(landing.folder)
    landing.look_twice()
    reasons = {file.name: file.refused is not None for files in landing.plans() for file in files}
    assert reasons == {"good": False, "k=1/inner": False, "self": True, "through": True, "long": True}
    assert states(landing)["p=1/"] is FileState.NOT_READ


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_closed_folder_is_told(landing: Landing) -> None:
    landing.land("k=1/inner")
    landing.land("good")
    (landing.folder / "k=1").chmod(0)
    planner = landing.planner()
    planner.look()
    assert landing.names() == [["good"]] and "k=1/ can't be read" in planner.state().first[0]


def test_what_a_removed_plan_named_is_planned_again_although_a_summary_has_it(landing: Landing) -> None:
    for number in range(70):
        landing.land(f"{number:02}")
    landing.planner(max_files_per_batch=1).look()
    landing.planner(max_files_per_batch=1)
    for number in range(5):
        landing.take_plan(number)
    removed = landing.workspace.root / "arrivals/lines/g000001"
    (removed / "0000000068.jsonl").unlink()
    (removed / "0000000003.jsonl").unlink()
    landing.planner(max_files_per_batch=1).look()
    assert landing.plans()[-1][0].name == "68"
    assert "03" not in [file.name for files in landing.plans() for file in files], "it was read"


@pytest.mark.parametrize("line", ['{"name":"x"}', "{}", "null", "garbage", "", "5"])
def test_a_plan_with_a_foreign_line_is_named(landing: Landing, line: str) -> None:
    landing.land("a")
    landing.planner().look()
    (landing.workspace.root / "arrivals/lines/g000001/0000000000.jsonl").write_text(f"{line}\n")
    with pytest.raises(StreamwardenError, match=r"DOCUMENT_INVALID(?s:.)*0000000000\.jsonl"):
        landing.planner()


@pytest.mark.parametrize("content", [b"", b"null", b"[1]", b"{", b"\xff"])
def test_a_damaged_list_of_refusals_stops_nothing(landing: Landing, content: bytes) -> None:
    landing.land("a")
    landing.planner()
    (landing.workspace.root / "arrivals/lines/g000001/_refused.json").write_bytes(content)
    planner = landing.planner()
    assert planner.look() == 1
    planner.refused({"a": "FILE_UNREADABLE"})
    assert plans_of(landing.workspace, "lines").refused() == {"a": "FILE_UNREADABLE"}


def test_a_reread_that_would_double_rows_is_refused(landing: Landing) -> None:
    landing.land("a")
    landing.planner().look()
    with pytest.raises(StreamwardenError, match="LANDING_WOULD_DOUBLE"):
        ask_reread(landing.workspace, landing.spec(keys=()), ["a"], by="test")
    with pytest.raises(StreamwardenError, match="LANDING_FILE_UNKNOWN"):
        ask_reread(landing.workspace, landing.spec(), ["nothing"], by="test")
    assert ask_reread(landing.workspace, landing.spec(keys=()), ["a"], by="test", doubling=True).files == {"a": 2}


def test_what_was_quarantined_is_told_for_as_long_as_it_lies_there(landing: Landing) -> None:
    landing.land("a")
    planner = landing.planner()
    planner.look()
    landing.take_plan(0)
    planner.refused({"a": "FILE_UNREADABLE: no magic"})
    planner.look()
    assert planner.state().first == ["a was quarantined whole: FILE_UNREADABLE: no magic"]
    after_a_restart = landing.planner()
    after_a_restart.look()
    assert after_a_restart.state().told == 1
    assert states(landing) == {"a": FileState.QUARANTINED}
    (landing.folder / "a").unlink()
    planner.look()
    assert planner.state().told == 0


def test_a_folder_that_is_gone_is_told_and_not_taken_for_an_empty_one(landing: Landing) -> None:
    planner = landing.planner()
    landing.folder.rename(landing.folder.with_name("elsewhere"))
    with pytest.raises(StreamwardenError, match="LANDING_UNREADABLE"):
        planner.look()
    assert "can't be planned" in planner.state().first[0]


def test_what_spark_read_before_there_were_plans_is_not_read_again(landing: Landing) -> None:
    landing.land("a b[1]")
    landing.land("day=1/c")
    landing.land("new")
    landing.take("landing/a%20b%5B1%5D", batch=0, name="0.compact")
    landing.take("landing/day=1/c", batch=1)
    landing.planner().look()
    assert landing.names() == [["new"]]
    assert {"a b[1]": FileState.READ, "day=1/c": FileState.READ}.items() <= states(landing).items()
    landing.land("a b[1]", at_s=OLD_S + 5)
    assert states(landing)["a b[1]"] is FileState.REPLACED


def test_a_restored_checkpoint_reads_the_plans_that_it_has_not_read(landing: Landing) -> None:
    for name in "abc":
        landing.land(name)
    planner = landing.planner(max_files_per_batch=1)
    planner.look()
    for number in range(3):
        landing.take_plan(number)
    # A savepoint of after the first batch, restored as generation 2.
    landing.checkpoint("checkpoints/lines/g000002", 2)
    landing.take("arrivals/lines/g000001/0000000000.jsonl", batch=0, checkpoint="checkpoints/lines/g000002")
    landing.land("d")
    restored = landing.planner(max_files_per_batch=1)
    assert restored.state().waiting == 2
    restored.look()
    assert landing.names() == [["a"], ["b"], ["c"], ["d"]]


def test_a_clone_reads_what_the_other_job_had_not_read(landing: Landing) -> None:
    for name in "ab":
        landing.land(name)
    landing.planner(max_files_per_batch=1).look()
    landing.checkpoint("checkpoints/twin/g000001", 1, job="twin")
    landing.take("arrivals/lines/g000001/0000000000.jsonl", batch=0, checkpoint="checkpoints/twin/g000001")
    twin = landing.planner(job="twin")
    twin.look()
    assert landing.names(job="twin") == [["b"]]


def test_many_plans_are_summarised_and_a_damaged_summary_is_not_missed(landing: Landing) -> None:
    for number in range(70):
        landing.land(f"{number:02}")
    landing.planner(max_files_per_batch=1).look()
    again = landing.planner(max_files_per_batch=1)
    summary = landing.workspace.root / "arrivals/lines/g000001/_known.jsonl"
    assert len(summary.read_text().splitlines()) == 71
    landing.land("new")
    again.look()
    summary.write_bytes(b"")
    last = landing.planner(max_files_per_batch=1)
    assert last.look() == 0
    assert len(landing.names()) == 71


def test_a_plan_that_is_there_already_counts(landing: Landing) -> None:
    """An answer that was lost, or another driver's plan: either way these files are planned."""
    landing.land("a")
    first, second = landing.planner(), landing.planner()
    first.look()
    assert second.look() == 0
    assert second.look() == 0
    assert landing.names() == [["a"]]


def test_nothing_is_planned_by_a_driver_that_may_not(landing: Landing) -> None:
    def refuse() -> None:
        raise StreamwardenError("LEASE_LOST", "test")

    landing.land("a")
    planner = landing.planner()
    landing.guard = refuse
    with pytest.raises(StreamwardenError, match="LEASE_LOST"):
        planner.look()
    assert landing.names() == []


def test_opening_a_file_finds_it_gone_or_replaced(landing: Landing) -> None:
    landing.land(b"\xff [1].txt", b"content")
    landing.planner().look()
    file = LandedFile.from_json(landing.plans()[0][0].to_json())
    with file.open() as stream:
        assert stream.read() == b"content"
    landing.land(b"\xff [1].txt", b"contents")
    with pytest.raises(LandedFileChanged):
        file.open()
    (landing.folder / os.fsdecode(b"\xff [1].txt")).unlink()
    with pytest.raises(LandedFileGone, match="1"):
        file.open()


NAMES = st.binary(min_size=1, max_size=20).filter(lambda name: b"/" not in name and b"\0" not in name)


@given(st.lists(NAMES, unique=True, max_size=8), st.integers(1, 3))
@settings(max_examples=300)
def test_no_two_readings_share_a_label(names: list[bytes], readings: int) -> None:
    labels = [
        LandedFile(os.fsdecode(name), "/f", 1, 1, reading).label for name in names for reading in range(1, readings + 1)
    ]
    assert len(set(labels)) == len(labels)
    for label in labels:
        assert label.encode().decode() == label


@given(NAMES)
def test_a_description_is_one_line_of_ascii(name: bytes) -> None:
    file = LandedFile(os.fsdecode(name), "/f", 1, 1, refused="FILE_UNREADABLE: ü")
    line = file.to_json()
    assert line.isascii() and "\n" not in line
    assert LandedFile.from_json(line) == file
    shown(file.name).encode()


def test_what_waits_is_counted_over_restarts_and_compacted_logs(landing: Landing) -> None:
    for number in range(4):
        landing.land(f"{number}")
    landing.planner(max_files_per_batch=1).look()
    plans = [f"arrivals/lines/g000001/{number:010}.jsonl" for number in range(4)]
    landing.take(plans[0], batch=0)
    # A driver that starts while that batch is begun, and finishes it.
    planner = landing.planner(max_files_per_batch=1)
    assert planner.after(None, offset(0)) == SourceProgress(unit="files", taken=1, pending=3, cut=True)
    lines = [
        json.dumps({"path": f"file:///elsewhere/{plan}", "timestamp": 1, "batchId": batch})
        for batch, plan in enumerate(plans[:2])
    ]
    landing.workspace.storage.write("checkpoints/lines/g000001/sources/0/1.compact", "\n".join(["v1", *lines]).encode())
    assert planner.after(offset(0), offset(1)) == SourceProgress(unit="files", taken=1, pending=2, cut=True)
    # One without input, such as Spark owes after a restart.
    assert planner.after(offset(1), offset(1)) == SourceProgress(unit="files", taken=0, pending=2, cut=True)
    assert [planner.after(None, end) for end in (None, "None", "null", "", "{}")] == [None] * 5


def test_a_number_that_spark_has_read_is_not_used_again(landing: Landing) -> None:
    """Spark reads no second file of a name: what is planned under it would never be read."""
    landing.land("a")
    landing.planner().look()
    landing.take_plan(0)
    (landing.workspace.root / "arrivals/lines/g000001/0000000000.jsonl").unlink()
    landing.planner().look()
    assert plans_of(landing.workspace, "lines").numbers() == [1]


def test_a_damaged_plan_is_named_and_planned_again_once_it_is_removed(landing: Landing) -> None:
    landing.land("a")
    landing.planner().look()
    plan = landing.workspace.root / "arrivals/lines/g000001/0000000000.jsonl"
    plan.write_bytes(plan.read_bytes()[:-3])
    with pytest.raises(StreamwardenError, match=r"0000000000\.jsonl.*\n.*Remove this file"):
        landing.planner()
    plan.unlink()
    landing.planner().look()
    assert landing.names() == [["a"]]


def test_a_damaged_request_stops_nothing(landing: Landing) -> None:
    landing.workspace.storage.write("control/lines/rereads/x.json", b"")
    landing.land("a")
    assert landing.planner().look() == 1


def test_a_file_waits_until_its_batch_is_committed(landing: Landing) -> None:
    landing.land("a")
    landing.planner().look()
    plan = "arrivals/lines/g000001/0000000000.jsonl"
    landing.take(plan, batch=0, commit=False)
    assert states(landing) == {"a": FileState.WAITING}
    landing.take(plan, batch=0)
    assert states(landing) == {"a": FileState.READ}


def test_rereads_are_looked_for_every_half_minute_on_s3(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    landing.workspace = dataclasses.replace(landing.workspace, s3=S3Location("bucket"))
    landing.land("a")
    planner = landing.planner()
    planner.look()
    listed: list[str] = []
    inner, now = landing.workspace.storage.list, time.monotonic()
    monkeypatch.setattr(landing.workspace.storage, "list", lambda prefix: listed.append(prefix) or inner(prefix))
    for second in range(1, 121):
        monkeypatch.setattr(time, "monotonic", lambda second=second: now + second)
        planner.look()
    assert 3 <= len(listed) <= 4, "2,880 a day"
    ask_reread(landing.workspace, landing.spec(), ["a"], by="test")
    monkeypatch.setattr(time, "monotonic", lambda: now + 151)
    assert planner.look(rest=True) == 0, "the first plan waits"
    landing.take_plan(0)
    planner.after(None, offset(0))
    monkeypatch.setattr(time, "monotonic", lambda: now + 182)
    assert planner.look() == 1
