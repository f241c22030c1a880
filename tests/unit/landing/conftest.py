from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from streamwarden.landing.file import LandedFile
from streamwarden.landing.planner import Planner
from streamwarden.landing.plans import plans_of
from streamwarden.model.record import utc_now
from streamwarden.model.source_spec import FileSource
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import CheckpointRef
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace, open_workspace

OLD_S = 1_000_000_000


class Landing:
    """A job `lines` that reads a folder, without Spark: what Spark would take is written by :meth:`take`."""

    def __init__(self, folder: Path) -> None:
        (folder / "config" / "profiles").mkdir(parents=True)
        (folder / "config" / "profiles" / "test.yaml").write_text(yaml.safe_dump({"name": "test", "root": "root"}))
        self.workspace: Workspace = open_workspace("test", config=folder / "config")
        self.folder = self.workspace.root / "landing"
        self.folder.mkdir(parents=True)
        self.guard: Callable[[], None] = lambda: None
        self.checkpoint("checkpoints/lines/g000001", 1)

    def checkpoint(self, path: str, generation: int, *, job: str = "lines") -> None:
        reference = CheckpointRef(job=job, generation=generation, path=path, since=utc_now(), reason="test")
        JobDocuments(self.workspace.storage, job).checkpoint.write(reference)

    def spec(self, *, job: str = "lines", keys: Sequence[str] = ("k",), **source: Any) -> JobSpec:
        return JobSpec.model_validate(
            {
                "name": job,
                "module": "m",
                "source": {"kind": "files", "path": "landing", **source},
                "sinks": [{"table": "t", "mode": "append", "keys": keys}],
            }
        )

    def land(self, name: str | bytes, data: bytes = b"x", *, at_s: float = OLD_S) -> None:
        path = self.folder / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (at_s, at_s))

    def planner(self, *, job: str = "lines", **source: Any) -> Planner:
        spec = self.spec(job=job, **source)
        assert isinstance(spec.source, FileSource)
        reference = JobDocuments(self.workspace.storage, job).checkpoint.read()
        assert reference is not None
        made = Planner(self.workspace, job, spec.source, reference, lambda: self.guard())
        made.open()
        return made

    def plans(self, *, job: str = "lines") -> list[list[LandedFile]]:
        plans = plans_of(self.workspace, job)
        return [plans.read(number) for number in plans.numbers()]

    def names(self, *, job: str = "lines") -> list[list[str]]:
        return [[file.name for file in files] for files in self.plans(job=job)]

    def take(
        self,
        *paths: str,
        batch: int,
        checkpoint: str = "checkpoints/lines/g000001",
        name: str = "",
        commit: bool = True,
    ) -> None:
        """Write the entry of the source's log that Spark writes when it takes files."""
        lines = [
            json.dumps({"path": f"file://{self.workspace.root}/{path}", "timestamp": OLD_S * 1000, "batchId": batch})
            for path in paths
        ]
        write = self.workspace.storage.write
        write(f"{checkpoint}/sources/0/{name or batch}", "\n".join(["v1", *lines]).encode())
        if commit:
            write(f"{checkpoint}/offsets/{batch}", f'v1\n{{}}\n{{"logOffset":{batch}}}'.encode())
            write(f"{checkpoint}/commits/{batch}", b"v1\n{}")

    def look_twice(self, **source: Any) -> None:
        """Let one planner look, take what it planned, and look again."""
        planner = self.planner(**source)
        planner.look()
        for number in range(len(self.plans())):
            self.take_plan(number)
        planner.after(None, json.dumps({"logOffset": len(self.plans()) - 1}))
        planner.look()

    def take_plan(self, number: int, *, batch: int | None = None, folder: str = "arrivals/lines/g000001") -> None:
        self.take(f"{folder}/{number:010}.jsonl", batch=number if batch is None else batch)


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    return Landing(tmp_path)
