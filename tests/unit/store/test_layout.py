"""The keys of ROOT. They are on users' disks and in their buckets: a change here needs a migration."""

from __future__ import annotations

import pytest

from streamwarden.store import layout

pytestmark = pytest.mark.unit

LAUNCH = "control/trips/incarnations/20260101T000000000z0000/launch.json"


def test_keys_are_exactly_these() -> None:
    assert (layout.ARRIVALS, layout.CHECKPOINTS, layout.CONTROL) == ("arrivals", "checkpoints", "control")
    assert (layout.LOGS, layout.QUALITY, layout.SAVEPOINTS) == ("logs", "quality", "savepoints")
    assert (layout.SCRATCH, layout.TABLES) == ("scratch", "tables")
    assert layout.table_key("t") == "tables/t"
    assert layout.delta_log_key("t") == "tables/t/_delta_log"
    assert layout.job_key(layout.LOGS, "trips", "i") == "logs/trips/i"
    assert layout.checkpoint_key("trips", 1) == "checkpoints/trips/g000001"
    assert layout.checkpoint_key("trips", 1_234_567) == "checkpoints/trips/g1234567"
    assert layout.plans_key("trips", 12) == "arrivals/trips/g000012"
    assert layout.savepoint_key("trips", "s") == "savepoints/trips/s"
    assert layout.savepoint_checkpoint_key("trips", "s") == "savepoints/trips/s/checkpoint"
    assert layout.totals_key("trips", 3) == "control/trips/totals/g000003.json"


@pytest.mark.parametrize(
    ("names", "key", "kind"),
    [
        (["lease"], "control/trips/lease.json", "lease"),
        ([layout.INCARNATIONS, "20260101T000000000z0000", "launch"], LAUNCH, layout.LAUNCH),
        ([layout.OPERATIONS, "o"], "control/trips/operations/o.json", layout.OPERATIONS),
        ([layout.RECORDS, "s"], "control/trips/savepoints/s.json", layout.RECORDS),
        ([layout.REREADS, "r"], "control/trips/rereads/r.json", layout.REREADS),
        ([layout.TOTALS, "g000001"], "control/trips/totals/g000001.json", layout.TOTALS),
    ],
)
def test_a_document_is_parsed_as_it_was_built(names: list[str], key: str, kind: str) -> None:
    assert layout.document_key("trips", *names) == key
    assert (layout.job_of(key), layout.kind_of(key)) == ("trips", kind)
    assert len(names) == 1 or layout.id_of(key) == names[1]


@pytest.mark.parametrize("generation", [1, 42, 999_999, 1_000_000])
def test_a_generation_is_parsed_as_it_was_built(generation: int) -> None:
    keys = (layout.checkpoint_key("g7", generation), layout.totals_key("g7", generation))
    assert [(layout.job_of(key), layout.generation_of(key)) for key in keys] == [("g7", generation)] * 2
    plans = layout.plans_key("g7", generation)
    assert layout.generation_of(plans) == generation
    assert layout.plans_folder_of(f"s3a://bucket/arrivals/x/{plans}/0000000000.jsonl") == plans


@pytest.mark.parametrize("key", ["checkpoints/trips/x", "checkpoints/g7/", "g", "", "control/j/totals/g1.json.tmp"])
def test_another_name_is_no_generation(key: str) -> None:
    assert layout.generation_of(key) is None


@pytest.mark.parametrize("key", ["", "checkpoint", "control/trips", "savepoints/trips/s/manifest.json"])
def test_another_key_names_no_job(key: str) -> None:
    assert layout.job_of(key) is None


@pytest.mark.parametrize("path", ["", "a.csv", "/data/landing/2026/01/a.csv", "arrivals/trips/g000001"])
def test_another_file_is_in_no_folder_of_plans(path: str) -> None:
    assert layout.plans_folder_of(path) is None
