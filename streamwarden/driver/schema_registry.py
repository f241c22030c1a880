"""A schema registry's subject: the writers' schemas by id, and the newest one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from streamwarden.errors import StreamwardenError
from streamwarden.store.value_schemas import record_of

__all__ = ["REGISTRY_ENV", "Subject", "read_subject"]

REGISTRY_ENV = "STREAMWARDEN_SCHEMA_REGISTRY_URL"

_ANSWER_S = 10.0
"""Seconds that the registry may take for an answer. 10: a first connection, on a slow network."""


@dataclass(frozen=True)
class Subject:
    """A subject of a registry.

    Parameters
    ----------
    name
        Its name.
    newest
        The schema of its newest version, JSON text.
    by_id
        All its schemas, by id. Deleted versions are among them, since topics may still have their records.
    """

    name: str
    newest: str
    by_id: Mapping[int, str]


def read_subject(
    url: str, name: str, *, environment: Mapping[str, str] | None = None, transport: httpx.BaseTransport | None = None
) -> Subject:
    """Read a subject from a registry.

    Parameters
    ----------
    url
        The address in the YAML; ``STREAMWARDEN_SCHEMA_REGISTRY_URL``, which may hold a login, overrides it.
    environment
        Default: this process's environment.
    transport
        For tests; default the network.

    Raises
    ------
    StreamwardenError
        ``CONFIG_INVALID`` for an address that is none; ``SCHEMA_REGISTRY_UNREACHABLE``; ``SOURCE_SCHEMA_UNKNOWN``
        without such a subject; ``SOURCE_INVALID`` for schemas that are not plain Avro.
    """
    found = os.environ if environment is None else environment
    try:
        address = httpx.URL(found.get(REGISTRY_ENV) or url)
        if address.scheme not in ("http", "https") or not address.host:
            raise httpx.InvalidURL("no address")
    except httpx.InvalidURL:
        # Without the cause, which has a part of the address: of one with a slip, maybe the password.
        what = f"{REGISTRY_ENV} is no http(s)://[USER:PASSWORD@]HOST:PORT"
        raise StreamwardenError("CONFIG_INVALID", what) from None
    # Without the login, for messages.
    shown = f"{address.scheme}://{address.host}" + (f":{address.port}" if address.port else "")
    login = httpx.BasicAuth(address.username, address.password) if address.userinfo else None
    # No proxy of the environment: it would get requests for this very machine.
    with httpx.Client(
        base_url=address.copy_with(userinfo=b""), auth=login, timeout=_ANSWER_S, trust_env=False, transport=transport
    ) as client:
        try:
            return _read(client, name)
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.NOT_FOUND:
                what = f"the registry at {shown} has no subject {name} with a schema"
                raise StreamwardenError("SOURCE_SCHEMA_UNKNOWN", what) from None
            what = f"{shown} answers {error.response.status_code} to a request for subject {name}"
            raise StreamwardenError("SCHEMA_REGISTRY_UNREACHABLE", what) from None
        except (httpx.HTTPError, LookupError, TypeError) as error:
            raise StreamwardenError(
                "SCHEMA_REGISTRY_UNREACHABLE", f"{shown}: {type(error).__name__}: {error}"
            ) from None
        except ValueError as error:
            raise StreamwardenError("SOURCE_INVALID", f"subject {name} at {shown}: {error}") from None


def _read(client: httpx.Client, name: str) -> Subject:
    path = f"subjects/{quote(name, safe='')}/versions"
    newest = max(_get(client, path))
    schemas: dict[int, str] = {}
    last = ""
    for version in sorted(_get(client, path, deleted=True)):
        found = _get(client, f"{path}/{version}", deleted=True)
        kind = found.get("schemaType", "AVRO")
        if kind != "AVRO" or found.get("references"):
            what = "refers to other subjects" if kind == "AVRO" else f"is of type {kind}"
            raise ValueError(f"version {version} {what}, which is not read")
        record_of(found["schema"])
        schemas[int(found["id"])] = found["schema"]
        if version == newest:
            last = found["schema"]
    return Subject(name, last, schemas)


def _get(client: httpx.Client, path: str, *, deleted: bool = False) -> Any:
    answer = client.get(path, params={"deleted": "true"} if deleted else None)
    answer.raise_for_status()
    return answer.json()
