"""Readers of an unchanged document share one object; nobody gets an old one."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamwarden.model.progress import Progress
from streamwarden.model.record import utc_now
from streamwarden.storage import LocalStorage
from streamwarden.store.documents import JobDocuments, _Parsed

pytestmark = pytest.mark.unit


def _json(incarnation: str) -> bytes:
    return Progress(incarnation=incarnation, at=utc_now()).model_dump_json().encode()


def test_the_same_bytes_are_parsed_once_and_others_anew(tmp_path: Path) -> None:
    document = JobDocuments(LocalStorage(tmp_path), "lamp").progress("i1")
    document.write(Progress(incarnation="i1", at=utc_now()))
    first = document.read()
    assert first is document.read() and first is not None
    document.write(first.model_copy(update={"at": utc_now()}))
    assert document.read() is not first
    document.delete()
    assert document.read() is None


def test_places_with_the_same_keys_do_not_mix(tmp_path: Path) -> None:
    one, other = (JobDocuments(LocalStorage(tmp_path / name), "lamp").progress("i1") for name in ("a", "b"))
    one.write(Progress(incarnation="a", at=utc_now()))
    other.write(Progress(incarnation="b", at=utc_now()))
    for _ in range(2):
        assert [document.read().incarnation for document in (one, other)] == ["a", "b"]  # type: ignore[union-attr]


def test_what_was_not_read_for_longest_is_dropped() -> None:
    data = {name: _json(name) for name in ("a", "b", "c")}
    kept = _Parsed(room=2 * len(data["a"]))
    first = kept.get(Progress, "a", data["a"])
    second = kept.get(Progress, "b", data["b"])
    assert kept.get(Progress, "a", data["a"]) is first
    kept.get(Progress, "c", data["c"])
    assert kept.get(Progress, "a", data["a"]) is first
    assert kept.get(Progress, "b", data["b"]) is not second
    # A new content takes the place of the old one, and not more room.
    for _ in range(5):
        kept.get(Progress, "b", _json("b"))
    assert kept._size <= kept._room and len(kept._kept) == 2
