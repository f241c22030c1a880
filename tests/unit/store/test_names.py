"""Names from outside that would lead elsewhere: refused wherever one becomes a part of a path or key."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import BaseModel, ValidationError
from typer.testing import CliRunner

from streamwarden.cli.app import app
from streamwarden.errors import StreamwardenError
from streamwarden.model.savepoint import FileEntry
from streamwarden.model.spec import LookupSpec, SinkSpec
from streamwarden.names import check_key, is_name, is_part
from streamwarden.quality.suites import load_suite
from streamwarden.storage import LocalFiles, LocalStorage, S3Location
from streamwarden.storage.s3_client import Bucket
from streamwarden.store import layout
from streamwarden.store.config import load_job, load_profile
from streamwarden.store.documents import JobDocuments
from tests.batches import make_place

pytestmark = pytest.mark.unit

HOSTILE = [
    "..",
    ".",
    "",
    "../secret",
    "a/../../secret",
    "a/b",
    "/etc/passwd",
    "..\\secret",
    "a\\b",
    "a\0b",
    "a\nb",
    "trips\n",
    "\x1b[2Jtrips",
    "%2e%2e%2fsecret",
    "..%2fsecret",
    "-rf",
    "--root",
    "~root",
    "$HOME",
    "$(id)",
    "a b",
    "a*",
    "a{b}",
    "s3a://bucket/x",
    "file:///etc/passwd",
    "tr\u0456ps",  # a Cyrillic letter
    "trips\u2044x",  # a fraction slash
    "\uff0e\uff0e",  # full-width dots
    "trips\u202e",  # right to left
    "\ud800",  # a lone surrogate
    ".hidden",
    "x" * 300,
]


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_no_key_of_root_holds_it(name: str) -> None:
    built: list[Callable[[], str]] = [
        lambda: layout.checkpoint_key(name, 1),
        lambda: layout.plans_key(name, 1),
        lambda: layout.totals_key(name, 1),
        lambda: layout.document_key("trips", layout.INCARNATIONS, name, "launch"),
        lambda: layout.savepoint_checkpoint_key("trips", name),
        lambda: layout.savepoint_manifest_key(name, "s"),
        lambda: layout.job_key(layout.LOGS, "trips", name),
    ]
    one_name = [layout.table_key, layout.delta_log_key, layout.published_key, layout.published_log_key]
    one_name += [layout.gate_key, layout.gate_events_key, layout.serving_key]
    one_name += [layout.host_key, layout.start_key]
    for build in [*built, *((lambda make=make: make(name)) for make in one_name)]:
        with pytest.raises(StreamwardenError) as error:
            build()
        assert error.value.code == "NAME_INVALID"
        # A terminal gets no control characters, and no page of text.
        assert str(error.value).isascii() and "\x1b" not in str(error.value) and len(str(error.value)) < 1500


def test_every_builder_of_keys_is_among_those() -> None:
    builders = {name for name, one in inspect.getmembers(layout, inspect.isfunction) if name.endswith("_key")}
    tested = inspect.getsource(test_no_key_of_root_holds_it)
    assert {name for name in builders if f"layout.{name}" not in tested} == {"savepoint_key"}
    # That one is part of these two.
    assert "savepoint_key" in inspect.getsource(layout.savepoint_manifest_key)


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_no_job_and_no_profile_is_read_by_it(name: str, tmp_path: Path) -> None:
    workspace = make_place(tmp_path)
    for folder in (tmp_path, workspace.config):
        (folder / "secret.yaml").write_text("name: secret\n")
    with pytest.raises(StreamwardenError) as error:
        load_job(name, config=workspace.config)
    assert error.value.code == "JOB_UNKNOWN"
    with pytest.raises(StreamwardenError) as error:
        load_profile(name, config=workspace.config)
    assert error.value.code == "CONFIG_NOT_FOUND"


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_no_model_takes_it(name: str) -> None:
    fields: list[tuple[type[BaseModel], dict[str, Any]]] = [
        (LookupSpec, {"table": name}),
        (SinkSpec, {"table": name, "mode": "append"}),
    ]
    for model, given in fields:
        with pytest.raises(ValidationError):
            model.model_validate(given)
    assert not is_name(name) and not is_part(name)


@pytest.mark.parametrize("path", ["../x", "state/../../x", "a//b", "..", "", "/", "a\0b", "./a"])
def test_a_manifest_copies_only_what_is_below_its_folder(path: str) -> None:
    with pytest.raises(ValidationError, match="not a key"):
        FileEntry(path=path, size=1, sha256="")


@pytest.mark.parametrize("key", ["../x", "a/../../x", "a//b", "..", "", "a\0b"])
def test_no_store_follows_it(key: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("secret")
    root = tmp_path / "root"
    bucket = Bucket(S3Location("bucket", "team"), connections=1, attempts=1, read_timeout_s=1)
    for follow in (LocalFiles(root).read, LocalStorage(root).read, LocalStorage(root).delete, bucket.key, check_key):
        with pytest.raises(ValueError, match="not a key"):
            follow(key)


def test_files_that_are_not_ours_do_not_stop_a_job(tmp_path: Path) -> None:
    workspace = make_place(tmp_path)
    for folder in ("control/lost+found", "control/a copy", "control/trips/incarnations/old one"):
        (workspace.root / folder).mkdir(parents=True)
    (workspace.root / "control/trips/incarnations/old one/launch.json").write_text("{}")
    (workspace.root / "control/trips/operations").mkdir()
    (workspace.root / "control/trips/operations/an old one.json").write_text("{}")
    assert workspace.files.folders("control") == ["trips"]
    documents = JobDocuments(workspace.storage, "trips")
    assert documents.incarnations() == [] and documents.past_operations() == []


def test_a_suite_is_of_a_table_that_can_exist(tmp_path: Path) -> None:
    path = tmp_path / "My Table.json"
    expectation = {"type": "t", "kwargs": {}, "severity": "critical", "meta": {"id": "a"}}
    path.write_text(json.dumps({"name": "My Table", "meta": {"keys": ["k"]}, "expectations": [expectation]}))
    with pytest.raises(StreamwardenError, match="name: use lower-case letters"):
        load_suite(path)


def commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each command of the command line with the words that call it."""
    if hasattr(group, "commands"):
        for name, command in group.commands.items():
            yield from commands(command, (*words, name))
    else:
        yield words, group


def named(command: Any) -> list[Any]:
    """Return the parameters that take a name."""
    known = {"job", "jobs", "table", "tables", "savepoint", "incarnation", "operation", "profile"}
    return [one for one in command.params if one.name in known]


COMMANDS = dict(commands(typer.main.get_command(app)))


def test_every_command_is_called() -> None:
    assert len([one for one in COMMANDS if named(COMMANDS[one])]) > 40


@pytest.mark.parametrize("words", [one for one in COMMANDS if named(COMMANDS[one])], ids=" ".join)
def test_no_command_leaves_the_root(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command with each name: it fails with an error of the catalogue, and nothing appears elsewhere."""
    workspace = make_place(tmp_path / "place")
    monkeypatch.setenv("STREAMWARDEN_CONFIG", str(workspace.config))
    monkeypatch.setenv("STREAMWARDEN_PROFILE", workspace.profile.name)
    before = inventory(tmp_path)
    command = COMMANDS[words]
    for name in ("../../secret", "a/b", "a\nb", "%2e%2e", "tr\u0456ps", "x" * 300):
        for target in named(command):
            given = [*words, *arguments(command, target, name)]
            done = CliRunner().invoke(app, given, catch_exceptions=True)
            assert done.exit_code != 0, f"{given}: {done.output}"
            assert done.exception is None or isinstance(done.exception, SystemExit), f"{given}: {done.exception!r}"
    # A failed restore of the harmless job leaves its record there.
    record = str(workspace.root / "control/1/operation")
    assert {one for one in inventory(tmp_path) - before if not one.startswith(record)} == set()


def arguments(command: Any, target: Any, name: str) -> list[str]:
    """Return a call's arguments with a name in one of them, and something harmless where one is required."""
    options, positional = [], []
    for one in command.params:
        value = name if one is target else "1" if one.required else None
        if one.param_type_name == "argument":
            positional.append(value if value is not None else "trips")
        elif value is not None:
            options += [one.opts[0], value]
    return [*options, "--", *positional] if positional else options


def inventory(folder: Path) -> set[str]:
    """Return the files of a folder; locks are empty and of no name."""
    return {str(path) for path in folder.rglob("*") if path.is_file() and path.parent.name != ".locks"}
