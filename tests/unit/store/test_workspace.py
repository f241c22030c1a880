"""Opening a place to run: on disk, on S3, and what is refused. Nothing here asks a server."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from streamwarden.errors import StreamwardenError
from streamwarden.storage import LocalFiles, LocalStorage, S3Files, S3Storage
from streamwarden.store.workspace import Workspace, open_workspace

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STREAMWARDEN_ROOT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)


def opened(folder: Path, **fields: Any) -> Workspace:
    profiles = folder / "config" / "profiles"
    profiles.mkdir(parents=True, exist_ok=True)
    (profiles / "here.yaml").write_text(yaml.safe_dump({"name": "here", "root": "root", **fields}))
    return open_workspace("here", config=folder / "config")


def test_on_disk_everything_is_below_the_root(tmp_path: Path) -> None:
    place = opened(tmp_path)
    assert isinstance(place.storage, LocalStorage) and isinstance(place.files, LocalFiles)
    assert place.s3 is None and place.table("trips") == str(tmp_path / "root" / "tables" / "trips")
    assert place.delta_rs("trips") == (place.table("trips"), None)


def test_with_a_bucket_the_root_keeps_what_is_local(tmp_path: Path) -> None:
    place = opened(tmp_path, s3={"bucket": "one-bucket", "prefix": "team/streams", "region": "eu-central-1"})
    assert isinstance(place.storage, S3Storage) and isinstance(place.files, S3Files)
    assert place.table("trips") == "s3a://one-bucket/team/streams/tables/trips"
    assert place.source_path("landing") == str(tmp_path / "root" / "landing")
    assert place.log_dir("job", "id").is_relative_to(tmp_path)
    assert place.delta_rs("trips") == ("s3://one-bucket/team/streams/tables/trips", {"AWS_REGION": "eu-central-1"})


def test_s3_without_boto3_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamwarden.errors.find_spec", lambda name: None if name == "boto3" else find_spec(name))
    opened(tmp_path)
    with pytest.raises(StreamwardenError) as caught:
        opened(tmp_path, s3={"bucket": "one-bucket"})
    assert caught.value.code == "EXTRA_MISSING" and 'pip install "streamwarden[s3]"' in caught.value.remedy


def test_the_environment_fills_in_what_the_profile_leaves_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://general:1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    place = opened(tmp_path, s3={"bucket": "one-bucket"})
    assert place.s3 is not None and (place.s3.endpoint, place.s3.region) == ("http://general:1", "us-west-2")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://for-s3:2")
    monkeypatch.setenv("AWS_REGION", "us-east-2")
    place = opened(tmp_path, s3={"bucket": "one-bucket"})
    assert place.s3 is not None and (place.s3.endpoint, place.s3.region) == ("https://for-s3:2", "us-east-2")
    assert place.delta_rs("t")[1] == {
        "AWS_REGION": "us-east-2",
        "AWS_ENDPOINT_URL": "https://for-s3:2",
        "AWS_ALLOW_HTTP": "false",
    }
    named = {"bucket": "one-bucket", "endpoint": "http://named:3", "region": "sa-east-1"}
    place = opened(tmp_path, s3=named)
    assert place.s3 is not None and (place.s3.endpoint, place.s3.region) == ("http://named:3", "sa-east-1")


@pytest.mark.parametrize(
    "s3",
    [
        {},
        {"bucket": "Capitals"},
        {"bucket": "b"},
        {"bucket": "one-bucket", "prefix": "/slash"},
        {"bucket": "one-bucket", "prefix": "slash/"},
        {"bucket": "one-bucket", "prefix": "a/../b"},
        {"bucket": "one-bucket", "endpoint": "host:9000"},
        {"bucket": "one-bucket", "endpoint": "http://user:word@host:9000"},
        {"bucket": "one-bucket", "secret_key": "x"},
    ],
)
def test_what_is_no_place_on_s3_is_refused(tmp_path: Path, s3: dict[str, str]) -> None:
    with pytest.raises(StreamwardenError) as caught:
        opened(tmp_path, s3=s3)
    assert caught.value.code == "CONFIG_INVALID" and "s3" in caught.value.what


@pytest.mark.parametrize(
    "name", ["My Streams (v1) #2 100%", "a:b", "a;b@c&d=e+f~g!h'i\"j<k>$l", "zürich 日本", "50%d", "%zz"]
)
def test_a_root_may_have_any_name_that_spark_and_delta_rs_can_take(tmp_path: Path, name: str) -> None:
    assert opened(tmp_path, root=name).root == tmp_path / name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        *((f"a{one}b", f"has {one!r}, which Spark reads as a pattern") for one in "[]{}*?"),
        *((f"a{one}b", f"has {one!r}, which delta-rs refuses") for one in "|^\\"),
        ("a,b", "has ','"),
        ("a`b", "has '`'"),
        ("a%20b", "has '%20', which delta-rs reads as one escaped character"),
        ("a%2fb", "has '%2f'"),
        ("a\nb", "a control character"),
        ("a\udcffb", "bytes that are not UTF-8"),
    ],
)
def test_a_root_that_one_of_them_would_look_for_elsewhere_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    opened(tmp_path)
    with pytest.raises(StreamwardenError, match="profile here: root: ") as raised:
        open_workspace("here", config=tmp_path / "config", root=name)
    assert raised.value.code == "CONFIG_INVALID" and said in raised.value.what
    assert "--root" in raised.value.remedy
    assert not list(tmp_path.glob("a*"))
