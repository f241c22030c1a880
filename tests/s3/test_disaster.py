"""A bucket lost and brought back from a copy whose tables and documents are of different days."""

from __future__ import annotations

import pytest
from typing_extensions import override

from tests.integration.conftest import Place
from tests.integration.test_disaster import Day, lead_back, live, older_checkpoint, older_outputs
from tests.s3.conftest import Place as S3Place

pytestmark = [pytest.mark.s3, pytest.mark.integration, pytest.mark.long]


class BucketDay(Day):
    """The same in a bucket, whose prefix other programs copy and remove."""

    def __init__(self, place: Place, s3: S3Place) -> None:
        super().__init__(place, place.workspace.root / "no-copies")
        self._client, self._bucket, self._prefix = s3.client(), s3.location.bucket, s3.location.prefix

    @override
    def copy(self, name: str) -> None:
        self._copy(self._prefix, f"copies/{name}")

    @override
    def remove(self, folder: str = "") -> None:
        for key in self._keys(self._below(self._prefix, folder)):
            self._client.delete_object(Bucket=self._bucket, Key=key)

    @override
    def put(self, name: str, folder: str = "") -> None:
        self._copy(self._below(f"copies/{name}", folder), self._below(self._prefix, folder))

    def _copy(self, source: str, target: str) -> None:
        # Without S3A's markers of folders, as a backup tool does: S3A needs none, and versitygw does not copy them.
        for key in [one for one in self._keys(source) if not one.endswith("/")]:
            origin = {"Bucket": self._bucket, "Key": key}
            self._client.copy_object(Bucket=self._bucket, Key=target + key.removeprefix(source), CopySource=origin)

    def _keys(self, prefix: str) -> list[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=f"{prefix}/")
        return [one["Key"] for page in pages for one in page.get("Contents", [])]

    @staticmethod
    def _below(prefix: str, folder: str) -> str:
        return f"{prefix}/{folder}".rstrip("/")


@pytest.mark.timeout(1800)
def test_what_doctor_says_leads_back_to_equal_in_a_bucket(
    place: Place, s3: S3Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMWARDEN_CONFIG", str(place.config))
    monkeypatch.setenv("STREAMWARDEN_PROFILE", "test")
    place.profile(lease="300s", s3={"bucket": s3.location.bucket, "prefix": s3.location.prefix})
    day = BucketDay(place, s3)
    live(day)
    lead_back(day, older_outputs, {"OUTPUT_BEHIND", "RESTORE_OUTPUT_GONE"}, "restore")
    lead_back(day, older_checkpoint, {"CHECKPOINT_BEHIND"}, "restore")
