"""What a wrong configuration says: file, field, and what is wrong with it."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from streamwarden.errors import StreamwardenError
from streamwarden.model.durations import format_duration, parse_duration
from streamwarden.model.spec import FailureSpec, JobSpec
from streamwarden.store.config import job_names, load_job, load_profile

pytestmark = pytest.mark.unit

SOUND: dict[str, Any] = {
    "name": "windows",
    "module": "spark_jobs.zone_windows",
    "source": {"kind": "delta", "table": "trips"},
    "sinks": [{"table": "windows", "mode": "upsert", "keys": ["a"], "final_when_passed": "b"}],
    "watermark": "2h",
}
NEW_YEAR = "2026-01-01T00:00:00Z"
TRIPS = {"kind": "delta", "table": "trips"}
PLACE = {"name": "p", "root": "r"}
KAFKA = {"kind": "kafka", "topic": "trips", "bootstrap_servers": "one:9092, [::1]:9093"}

TOPICS = {"kind": "kafka", "topics": ["a", "b"], "bootstrap_servers": "one:9092"}
TOPIC = {"kind": "kafka", "topic": "alerts", "bootstrap_servers": "one:9092", "keys": ["a"]}
PROTOBUF = {"format": "protobuf", "descriptor_file": "empty.desc", "message": "shop.Sale"}


def _write(folder: Path, content: Any, name: str = "windows") -> None:
    (folder / "jobs").mkdir(exist_ok=True)
    text = content if isinstance(content, str) else yaml.safe_dump(content)
    (folder / "jobs" / f"{name}.yaml").write_text(text)


def _refusal(folder: Path, name: str = "windows") -> str:
    with pytest.raises(StreamwardenError) as caught:
        load_job(name, config=folder)
    assert caught.value.code == "CONFIG_INVALID"
    return caught.value.what


def test_a_sound_job_loads_with_defaults(tmp_path: Path) -> None:
    _write(tmp_path, SOUND)
    spec = load_job("windows", config=tmp_path)
    assert spec.trigger.interval == timedelta(seconds=60)
    assert spec.failures.tolerable_consecutive == 3
    assert spec.state.backend == "rocksdb" and spec.state.changelog_enabled
    assert job_names(tmp_path) == ["windows"]
    assert load_job("windows", config=tmp_path).digest() == spec.digest()


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"sink": []}, "sink", "unknown key"),
        ({"trigger": {"intervall": "1s"}}, "trigger.intervall", "unknown key"),
        ({"trigger": {"interval": 60}}, "trigger.interval", "unit"),
        ({"trigger": {"interval": "0s"}}, "trigger.interval", "at least 100ms"),
        ({"state": {"partitions": "many"}}, "state.partitions", "integer"),
        ({"state": {"partitions": 0}}, "state.partitions", "greater than"),
        ({"state": {"backend": "memory", "ttl": "1h"}}, "state", "ttl needs backend rocksdb"),
        ({"state": {"backend": "memory", "changelog": True}}, "state", "changelog needs backend rocksdb"),
        ({"state": {"backend": "disk"}}, "state.backend", "rocksdb"),
        ({"resources": {"memory": "lots"}}, "resources.memory", "512m"),
        ({"resources": {"memory": "465m"}}, "resources.memory", "less than 466m"),
        ({"source": {"kind": "delta", "table": "windows"}}, "", "read what it writes"),
        ({"source": {"kind": "delta", "path": "x"}}, "source.table", "required"),
        ({"source": {"kind": "pulsar"}}, "source", "kafka"),
        ({"source": {"kind": "kafka", "topic": "trips"}}, "source.bootstrap_servers", "required"),
        ({"source": {**KAFKA, "topic": "all of them"}}, "source.topic", "is no topic"),
        ({"source": {**KAFKA, "topics": ["a"]}}, "source", "give one of topic, topics and topic_pattern"),
        ({"source": {**KAFKA, "topic": None}}, "source", "give one of topic, topics and topic_pattern"),
        ({"source": {**KAFKA, "topic": None, "topics": ["a", "a b"]}}, "source.topics", "'a b' is no topic"),
        ({"source": {**KAFKA, "topic": None, "topics": ["a", "a"]}}, "source.topics", "twice"),
        ({"source": {**KAFKA, "topic": None, "topic_pattern": "a("}}, "source.topic_pattern", "no regular expression"),
        ({"source": {**KAFKA, "value": {"format": "json"}}}, "source.value.columns", "required"),
        ({"source": {**KAFKA, "value": {"format": "avro"}}}, "source.value", "give schema_file or registry"),
        (
            {"source": {**KAFKA, "value": {"format": "avro", "registry": "http://me:secret@there:1"}}},
            "source.value.registry",
            "STREAMWARDEN_SCHEMA_REGISTRY_URL",
        ),
        (
            {"source": {**TOPICS, "value": {"format": "avro", "registry": "http://there:1"}}},
            "source",
            "several topics need it",
        ),
        ({"source": {**KAFKA, "value": {"format": "avro", "schema_file": "no.avsc"}}}, "", "No such file"),
        ({"source": {**KAFKA, "value": {"format": "avro", "schema_file": "a.avsc"}}}, "", "no Avro record"),
        ({"source": {**KAFKA, "value": {**PROTOBUF, "descriptor_file": "no.desc"}}}, "", "No such file"),
        ({"source": {**KAFKA, "value": {**PROTOBUF, "descriptor_file": "a.avsc"}}}, "", "no set of descriptors"),
        ({"source": {**KAFKA, "value": PROTOBUF}}, "", "has no shop.Sale"),
        ({"sinks": [TOPIC]}, "sinks", "the first is a Delta table"),
        ({"sinks": [*SOUND["sinks"], {**TOPIC, "keys": []}]}, "sinks.1.keys", "at least 1"),
        ({"sinks": [*SOUND["sinks"], {**TOPIC, "mode": "upsert"}]}, "sinks.1.mode", "unknown key"),
        ({"sinks": [*SOUND["sinks"], {**TOPIC, "kind": "pulsar"}]}, "sinks.1", "'kafka'"),
        ({"sinks": [*SOUND["sinks"], TOPIC, TOPIC]}, "sinks", "topic alerts is named twice"),
        (
            {"sinks": [*SOUND["sinks"], {"table": "w", "mode": "append"}]},
            "sinks",
            "output main is named twice: a second",
        ),
        ({"source": KAFKA, "sinks": [*SOUND["sinks"], {**TOPIC, "topic": "trips"}]}, "source", "read what it writes"),
        ({"source": {**KAFKA, "bootstrap_servers": "one:9092,two"}}, "source.bootstrap_servers", "'two' is no address"),
        ({"source": {**KAFKA, "starting_offsets": "newest"}}, "source.starting_offsets", "latest"),
        ({"source": {**KAFKA, "history": {"table": "before"}}}, "source", "history.live_from is missing"),
        (
            {"source": {**KAFKA, "starting_offsets": "latest", "history": {"table": "a", "live_from": NEW_YEAR}}},
            "source",
            "starting_offsets does not go with history",
        ),
        ({"source": {**KAFKA, "history": {"table": "a", "live_from": "2026-01-01"}}}, "source.history.live_from", ""),
        ({"source": {**TRIPS, "history": {"table": "trips"}}}, "source", "is the source itself"),
        ({"source": {**TRIPS, "history": {"table": "a", "live_from": NEW_YEAR}}}, "source", "history.where"),
        ({"source": {**TRIPS, "history": {"table": "windows"}}}, "", "is also a sink"),
        ({"source": {"kind": "files", "path": "x", "history": {"table": "a"}}}, "source", "Land the files in a table"),
        (
            {"source": None, "sources": {"a": {**TRIPS, "history": {"table": "b"}}, "c": {**TRIPS, "table": "d"}}},
            "",
            "only if it has one source",
        ),
        ({"sinks": [{"table": "w", "mode": "upsert"}]}, "sinks.0", "needs keys"),
        ({"sinks": [{"table": "w", "mode": "append", "final_when_passed": "b"}]}, "sinks.0", "mode upsert"),
        ({"sinks": [{"table": "w", "mode": "append", "first_by": ["b"]}]}, "sinks.0", "first_by"),
        ({"sinks": []}, "sinks", "at least 1"),
        ({"watermark": None}, "", "needs a watermark"),
        ({"spark": {"spark.sql.shuffle.partitions": "8"}}, "spark", "state.partitions"),
        ({"spark": {"executor.cores": "8"}}, "spark", "start with spark."),
        ({"name": "Windows"}, "name", "lower-case"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, change: dict[str, Any], field: str, words: str) -> None:
    _write(tmp_path, {**SOUND, **change})
    (tmp_path / "a.avsc").write_text('{"type": "string"}')
    (tmp_path / "empty.desc").write_bytes(b"")
    said = _refusal(tmp_path)
    assert str(tmp_path / "jobs" / "windows.yaml") in said
    assert f": {field}" in said
    assert words in said


def test_all_findings_are_told_at_once(tmp_path: Path) -> None:
    _write(tmp_path, {**SOUND, "watermark": "soon", "surprise": 1})
    said = _refusal(tmp_path)
    assert "watermark" in said and "surprise" in said


@pytest.mark.parametrize("text", ["a: [", "- just\n- a list", "", "name: a\nname: b\n"])
def test_what_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    _write(tmp_path, text)
    _refusal(tmp_path)


def test_a_key_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    _write(tmp_path, yaml.safe_dump(SOUND) + "watermark: 3h\n")
    assert "'watermark' is there twice" in _refusal(tmp_path)


def test_the_name_is_the_files(tmp_path: Path) -> None:
    _write(tmp_path, SOUND, name="other")
    assert "other.yaml" in _refusal(tmp_path, "other")


def test_a_slip_in_the_yaml_is_told_by_its_place_and_not_by_its_words(tmp_path: Path) -> None:
    _write(tmp_path, yaml.safe_dump(SOUND) + 'options: {password: "hunter2, colour: green}\n')
    said = _refusal(tmp_path)
    assert "windows.yaml: not YAML: " in said and ", line " in said and "hunter2" not in said
    for slip in ("password: *hunter2", "password: !hunter2 x", "password: 'hunter2\x01'", "password: @hunter2"):
        _write(tmp_path, yaml.safe_dump(SOUND) + f"options: {{{slip}}}\n")
        assert "hunter2" not in _refusal(tmp_path)


def test_an_unknown_job_says_which_there_are(tmp_path: Path) -> None:
    _write(tmp_path, SOUND)
    with pytest.raises(StreamwardenError) as caught:
        load_job("nothing", config=tmp_path)
    assert caught.value.code == "JOB_UNKNOWN" and "windows" in caught.value.what


@pytest.mark.parametrize(
    "change",
    [
        {"state": {"backend": "rocksdb"}},
        {"state": {"backend": "memory"}},
        {"source": KAFKA},
        {"source": {**TOPICS, "value": {"format": "json", "columns": "a string"}}},
        {"sinks": [*SOUND["sinks"], TOPIC]},
    ],
)
def test_a_spec_survives_being_written_as_json(tmp_path: Path, change: dict[str, Any]) -> None:
    _write(tmp_path, {**SOUND, **change})
    spec = load_job("windows", config=tmp_path)
    again = JobSpec.model_validate_json(spec.model_dump_json())
    assert again == spec and again.digest() == spec.digest()


def test_spark_settings_become_text(tmp_path: Path) -> None:
    _write(tmp_path, {**SOUND, "spark": {"spark.a": True, "spark.b": 4}})
    assert load_job("windows", config=tmp_path).spark == {"spark.a": "true", "spark.b": "4"}


def test_a_profile_overrides_pace_and_size(tmp_path: Path) -> None:
    _write(tmp_path, {**SOUND, "options": {"window": "1h"}})
    (tmp_path / "profiles").mkdir()
    content = {
        "name": "fast",
        "root": "var",
        "jobs": {
            "interval": "2s",
            "partitions": 3,
            "resources": {"cores": 2, "memory": "2g"},
            "options": {"windows": {"extra": 1}, "other": {"x": 1}},
        },
    }
    (tmp_path / "profiles" / "fast.yaml").write_text(yaml.safe_dump(content))
    profile = load_profile("fast", config=tmp_path)
    spec = load_job("windows", config=tmp_path, profile=profile)
    assert spec.trigger.interval == timedelta(seconds=2)
    assert (spec.state.partitions, spec.resources.cores) == (3, 2)
    assert spec.options == {"window": "1h", "extra": 1}
    # The job's own file is untouched by a place.
    assert load_job("windows", config=tmp_path).trigger.interval == timedelta(seconds=60)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({**PLACE, "launcher": "yarn", "master": "yarn"}, "need each other"),
        ({**PLACE, "yarn": {"resource_managers": ["http://rm:8088"]}}, "need each other"),
        ({**PLACE, "launcher": "yarn", "yarn": {"resource_managers": ["http://rm:8088"]}}, "needs `master: yarn`"),
        ({**PLACE, "launcher": "yarn", "master": "yarn", "yarn": {"resource_managers": []}}, "yarn.resource_managers"),
        (
            {**PLACE, "launcher": "yarn", "master": "yarn", "yarn": {"resource_managers": ["rm"]}},
            "yarn.resource_managers",
        ),
        (
            {**PLACE, "launcher": "yarn", "master": "yarn", "yarn": {"resource_managers": ["http://rm"], "x": 1}},
            "unknown key",
        ),
        ({"name": "p"}, "root"),
        ({"name": "p", "root": "r", "lease": "3s", "heartbeat": "2s"}, "three heartbeats"),
        ({"name": "p", "root": "r", "jobs": {"watermark": "1h"}}, "jobs.watermark: unknown key"),
        ({"name": "p", "root": "r", "metrics": {"prometheus": {"ports": 3}}}, "metrics.prometheus: ports needs a port"),
        ({"name": "p", "root": "r", "metrics": {"prometheus": {"port": 65535, "ports": 2}}}, "goes beyond 65535"),
        ({"name": "p", "root": "r", "metrics": {"otlp": {"endpoint": "collector:4318"}}}, "metrics.otlp.endpoint"),
        ({"name": "p", "root": "r", "metrics": {"otlp": {"interval": "0s"}}}, "at least 100ms"),
        ({"name": "p", "root": "r", "progress_table": {"keep": "1h"}}, "keep must be at least 1d"),
        ({"name": "p", "root": "r", "progress_table": {"every": "0s"}}, "every must be at least 100ms"),
        ({"name": "p", "root": "r", "logs": {"format": "xml"}}, "logs.format"),
    ],
)
def test_a_wrong_profile_is_refused(tmp_path: Path, content: dict[str, Any], words: str) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "p.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(StreamwardenError) as caught:
        load_profile("p", config=tmp_path)
    assert "p.yaml" in caught.value.what and words in caught.value.what


def test_a_profile_exports_no_metrics_unless_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "p.yaml").write_text("name: p\nroot: r\nmetrics: {prometheus: {}}\n")
    profile = load_profile("p", config=tmp_path)
    assert profile.metrics.prometheus is not None and profile.metrics.prometheus.host == "127.0.0.1"
    assert profile.metrics.otlp is None and profile.progress_table.enabled and profile.logs.format == "text"
    (tmp_path / "profiles" / "p.yaml").write_text("name: p\nroot: r\n")
    assert load_profile("p", config=tmp_path).metrics.prometheus is None


def test_a_missing_profile_is_named(tmp_path: Path) -> None:
    with pytest.raises(StreamwardenError) as caught:
        load_profile("nowhere", config=tmp_path)
    assert caught.value.code == "CONFIG_NOT_FOUND"


@given(st.integers(min_value=0, max_value=10**12))
def test_durations_survive_being_written(milliseconds: int) -> None:
    duration = timedelta(milliseconds=milliseconds)
    assert parse_duration(format_duration(duration)) == duration


@pytest.mark.parametrize("text", ["", "5", "s", "-1s", "1.5h", "1h30m", "5 weeks", 5, None, True])
def test_what_is_no_duration_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


def test_a_drivers_waits_are_doubled_up_to_the_longest() -> None:
    failures = FailureSpec.model_validate({"tolerable_consecutive": 6, "backoff": "1s", "backoff_max": "10s"})
    assert [failures.wait_after(number).total_seconds() for number in range(1, 7)] == [1, 2, 4, 8, 10, 10]
    assert failures.waits == timedelta(seconds=35)
    many = failures.model_copy(update={"tolerable_consecutive": 5_000})
    assert many.wait_after(5_000) == timedelta(seconds=10)
    assert many.waits == timedelta(seconds=15 + 4_996 * 10)
    assert failures.model_copy(update={"tolerable_consecutive": 0}).waits == timedelta(0)


# -- several sources ---------------------------------------------------------------------------------------------------

DELTA = {"kind": "delta", "table": "trips"}
OTHER = {"kind": "kafka", "topic": "payments", "bootstrap_servers": "one:9092"}
FILES = {"kind": "files", "path": "landing"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "give source, or sources for two or more"),
        ({"source": DELTA, "sources": {"a": DELTA, "b": OTHER}}, "give source, or sources for two or more"),
        ({"sources": {"a": DELTA}}, "name two or more, or give the only one as source"),
        ({"sources": {"a": FILES, "b": FILES}}, "a and b are both of kind files"),
        ({"sources": {"A b": DELTA, "b": OTHER}}, "sources.A b: a name has lower-case letters"),
        ({"sources": {"a": {**DELTA, "table": "t"}, "b": OTHER}}, "sources.a.table t is also a sink"),
        ({"sources": {"a": {**DELTA, "colour": 1}, "b": OTHER}}, "colour"),
        ({"sources": {"a": {"kind": "paper"}, "b": OTHER}}, "paper"),
    ],
)
def test_what_is_wrong_with_several_sources_is_named(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(words)):
        JobSpec.model_validate({"name": "j", "module": "m", "sinks": [{"table": "t", "mode": "append"}], **fields})


def test_a_lookup_is_no_table_of_the_job() -> None:
    sinks = [{"table": "t", "mode": "append"}]
    fields = {"name": "j", "module": "m", "source": DELTA, "sinks": sinks, "lookups": {"z": {"table": "t"}}}
    with pytest.raises(ValidationError, match=r"lookups\.z\.table t is also a sink"):
        JobSpec.model_validate(fields)


def test_sources_are_found_by_kind_and_name() -> None:
    fields = {"name": "j", "module": "m", "sinks": [{"table": "t", "mode": "append"}]}
    spec = JobSpec.model_validate({**fields, "sources": {"c": DELTA, "a": OTHER, "b": FILES}})
    assert list(spec.inputs) == ["c", "a", "b"]
    assert list(spec.delta_sources) == ["c"] and list(spec.kafka_sources) == ["a"]
    assert spec.files_source is not None and spec.files_source.path == "landing"
    assert list(JobSpec.model_validate({**fields, "source": DELTA}).inputs) == ["source"]


@pytest.mark.parametrize(
    ("serve", "words"),
    [
        ({"kind": "redis", "url": "redis://user:secret@host:6379/0"}, "STREAMWARDEN_REDIS_URL"),
        ({"kind": "paper"}, "sqlite"),
        ({"kind": "sqlite", "expire_after": "1ms"}, "at least 1s"),
    ],
)
def test_what_is_wrong_with_a_serving_store_is_named(serve: dict[str, str], words: str) -> None:
    sink = {"table": "t", "mode": "upsert", "keys": ["k"], "serve": serve}
    with pytest.raises(ValidationError, match=words) as raised:
        JobSpec.model_validate({"name": "j", "module": "m", "source": DELTA, "sinks": [sink]})
    assert "secret@" not in str(raised.value).split("[type")[0]


def test_only_an_upserted_sink_is_served() -> None:
    sink = {"table": "t", "mode": "append", "serve": {"kind": "sqlite"}}
    with pytest.raises(ValidationError, match="serve goes with mode upsert"):
        JobSpec.model_validate({"name": "j", "module": "m", "source": DELTA, "sinks": [sink]})
