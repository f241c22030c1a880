"""What a refusal of an S3 server means."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from streamwarden.errors import StreamwardenError
from streamwarden.storage.s3_client import _translated

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("code", "named"),
    [("InternalError", "S3_UNREACHABLE"), ("SlowDown", "S3_THROTTLED"), ("AccessDenied", "S3_REFUSED")],
)
def test_a_refusal_for_one_key_of_many_has_no_status(code: str, named: str) -> None:
    # DeleteObjects answers 200, and names the keys that it did not delete.
    error = _translated(ClientError({"Error": {"Code": code, "Message": "m"}}, "DeleteObjects"), "s3://bucket/key")
    assert isinstance(error, StreamwardenError) and error.code == named
