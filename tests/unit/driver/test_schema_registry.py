"""What is read of a schema registry, from one on loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from streamwarden.driver.schema_registry import REGISTRY_ENV, read_subject
from streamwarden.errors import StreamwardenError
from tests.kafka.registry import Registry

pytestmark = pytest.mark.unit

FIRST = {"type": "record", "name": "Sale", "fields": [{"name": "id", "type": "string"}]}
SECOND = {**FIRST, "fields": [*FIRST["fields"], {"name": "amount", "type": "double", "default": 0.0}]}  # type: ignore[misc]


@pytest.fixture
def registry() -> Iterator[Registry]:
    made = Registry()
    yield made
    made.close()


def test_a_subject_has_all_its_schemas_by_id_and_the_newest(registry: Registry) -> None:
    registry.register("other-value", FIRST)
    ids = [registry.register("sales-value", one) for one in (FIRST, SECOND)]
    found = read_subject(registry.url, "sales-value", environment={})
    assert list(found.by_id) == ids == [2, 3]
    assert json.loads(found.newest) == SECOND == json.loads(found.by_id[3])
    # A topic may still have records of a deleted version.
    registry.deleted.add(("sales-value", 2))
    found = read_subject(registry.url, "sales-value", environment={})
    assert list(found.by_id) == ids and json.loads(found.newest) == FIRST


def test_what_cannot_be_read_is_named(registry: Registry) -> None:
    def code(name: str, url: str = registry.url) -> str:
        with pytest.raises(StreamwardenError) as caught:
            read_subject(url, name, environment={})
        assert caught.value.retryable is (caught.value.code != "SOURCE_INVALID")
        return caught.value.code

    registry.register("messages-value", FIRST, schemaType="PROTOBUF")
    registry.register("parts-value", FIRST, references=[{"name": "a", "subject": "b", "version": 1}])
    registry.register("text-value", {"type": "string"})
    assert code("none-value") == "SOURCE_SCHEMA_UNKNOWN"
    assert {code(name) for name in ("messages-value", "parts-value", "text-value")} == {"SOURCE_INVALID"}
    assert code("sales-value", "http://127.0.0.1:9") == "SCHEMA_REGISTRY_UNREACHABLE"


def test_the_login_of_the_environment_is_sent_and_not_told() -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(401)

    environment = {REGISTRY_ENV: "https://me:secret@there:8443/base"}
    transport: Any = httpx.MockTransport(answer)
    with pytest.raises(StreamwardenError) as caught:
        read_subject("http://yaml:8081", "a/b", environment=environment, transport=transport)
    assert str(asked[0].url) == "https://there:8443/base/subjects/a%2Fb/versions"
    assert asked[0].headers["Authorization"].startswith("Basic ")
    assert caught.value.code == "SCHEMA_REGISTRY_UNREACHABLE"
    assert "https://there:8443" in caught.value.what and "secret" not in str(caught.value)
