from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml

from streamwarden.landing.file import LandedFile, LandedFileChanged, LandedFileGone
from streamwarden.landing.planner import Planner
from streamwarden.landing.plans import plans_of
from streamwarden.model.record import utc_now
from streamwarden.model.source_spec import FileSource
from streamwarden.model.status import CheckpointRef
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace, open_workspace
from tests.s3.conftest import Place as S3Place

pytestmark = pytest.mark.s3

NAMES = ["plain.txt", "a b+c%20#1.txt", "d[1]{x}*?.txt", "10:00 ü.txt", "day=1/inner.txt"]


@pytest.fixture
def workspace(tmp_path: Path, s3: S3Place, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", str(s3.location.endpoint))
    (tmp_path / "config" / "profiles").mkdir(parents=True)
    profile = {"name": "test", "root": "root", "s3": {"bucket": s3.location.bucket, "prefix": s3.location.prefix}}
    (tmp_path / "config" / "profiles" / "test.yaml").write_text(yaml.safe_dump(profile))
    return open_workspace("test", config=tmp_path / "config")


def planned(workspace: Workspace, source: FileSource) -> list[LandedFile]:
    reference = CheckpointRef(job="lines", generation=1, path="checkpoints/lines/g000001", since=utc_now(), reason="t")
    JobDocuments(workspace.storage, "lines").checkpoint.write(reference)
    planner = Planner(workspace, "lines", source, reference, lambda: None)
    planner.open()
    planner.look()
    plans = plans_of(workspace, "lines")
    return [file for number in plans.numbers() for file in plans.read(number)]


def test_objects_of_any_name_are_planned_and_opened(workspace: Workspace, s3: S3Place) -> None:
    client, bucket = s3.client(), s3.location.bucket
    for name in [*NAMES, "_hidden.txt", "deep/x.txt"]:
        client.put_object(Bucket=bucket, Key=f"landed here/{name}", Body=name.encode())
    client.put_object(Bucket=bucket, Key="landed here/day=2/", Body=b"")
    found = planned(workspace, FileSource(kind="files", path=f"s3a://{bucket}/landed here"))
    assert sorted(file.name for file in found) == sorted(NAMES)
    for file in found:
        with LandedFile.from_json(file.to_json()).open() as stream:
            assert stream.read() == file.name.encode()

    replaced, gone = found[0], found[1]
    time.sleep(1.1)
    client.put_object(Bucket=bucket, Key=f"landed here/{replaced.name}", Body=replaced.name.upper().encode())
    client.delete_object(Bucket=bucket, Key=f"landed here/{gone.name}")
    with pytest.raises(LandedFileChanged):
        replaced.open()
    with pytest.raises(LandedFileGone):
        gone.open()
