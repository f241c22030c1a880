"""The pages in Airflow over a place on S3: the same as on disk."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("airflow")

from airflow.api_fastapi.app import _AuthManagerState
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api.security import get_user
from fastapi.testclient import TestClient

from streamwarden.airflow.pages.app import build_app
from streamwarden.airflow.pages.places import workspace as workspace_of
from streamwarden.store.workspace import Workspace
from tests.s3.conftest import Place
from tests.unit.airflow.pages.made import populated
from tests.unit.airflow.pages.test_routes import ADDRESSES

pytestmark = pytest.mark.s3


def words(client: TestClient, address: str) -> tuple[int, list[str]]:
    """Return what a page says, without markup, times or figures, nor the word after one: "59 s" is soon "1 min"."""
    answer = client.get(address)
    text = re.sub(r"<script.*?</script>|<style.*?</style>|<svg.*?</svg>|<[^>]*>", " ", answer.text, flags=re.DOTALL)
    return answer.status_code, re.findall(r"[A-Za-z_]{3,}", re.sub(r"[0-9][0-9.,:]* ?[A-Za-z]+", " ", text))


def test_each_page_says_what_it_says_on_disk(s3: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_AuthManagerState, "instance", SimpleAuthManager())

    def client(place: Workspace) -> TestClient:
        app = build_app()
        app.dependency_overrides[workspace_of] = lambda: place
        app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username="ann", role="OP")
        return TestClient(app, follow_redirects=False)

    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", str(s3.location.endpoint))
    on_disk = client(populated(tmp_path / "disk"))
    bucket = {"bucket": s3.location.bucket, "prefix": s3.location.prefix}
    on_s3 = client(populated(tmp_path / "s3", s3=bucket))
    for address in ADDRESSES.values():
        expected = words(on_disk, address)
        assert expected[0] in (200, 307), address
        assert words(on_s3, address) == expected, address
