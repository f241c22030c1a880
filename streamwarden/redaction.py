"""Keep secrets of the environment out of texts: the last barrier before an error, a document, a page or a log.

Secrets come from the environment only, and nothing here writes them. But clients of S3, Kafka, Redis and databases put
what they were given into their messages, and those become texts of errors.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from urllib.parse import unquote

__all__ = ["HIDDEN", "has_login", "is_secret_name", "redacted", "secrets_of"]

HIDDEN = "[hidden]"

# As Spark's own redaction, and the names of Kafka, OpenTelemetry, Airflow and databases.
_NAME = re.compile(
    r"secret|passw|token(?!iz)|access[._-]?key(?![._-]?id)|jaas|fernet|_headers$|sql_alchemy_conn|^airflow_conn_|basic\.auth",
    re.IGNORECASE,
)
_FILE = re.compile(r"[._]?(file|path|location|provider|class|type)s?$", re.IGNORECASE)
"""Ends the name of a setting that says where a secret is, and is none."""
_LOGIN = re.compile(r"://[^\s/@:]*:([^\s/]+)@")
_QUOTED = re.compile(r"""(?:password|secret|token)\s*=\s*["']([^"']+)["']""", re.IGNORECASE)
_LEAST = 6
"""Characters. A shorter secret would hide words of every text."""


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Return whether a setting or variable of this name holds a secret, by its name."""
    return _NAME.search(name) is not None and _FILE.search(name) is None


def has_login(value: str) -> bool:
    """Return whether a text has an address with a password."""
    return _LOGIN.search(value) is not None


def redacted(text: str, environment: Mapping[str, str] | None = None) -> str:
    """Return a text without the secrets of this process's environment, or of another one."""
    if not text:
        return text
    for secret in secrets_of(environment):
        text = text.replace(secret, HIDDEN)
    return text


def secrets_of(environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the secrets of this process's environment, or of another one; the longest first."""
    found = os.environ if environment is None else environment
    return _secrets(tuple(sorted((name, value) for name, value in found.items() if _may_hold(name, value))))


def _may_hold(name: str, value: str) -> bool:
    return is_secret_name(name) or "@" in value


@lru_cache(maxsize=8)
def _secrets(held: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """Return the secrets, longest first, so that one that holds another is hidden as a whole."""
    found: set[str] = set()
    for name, value in held:
        logins = _LOGIN.findall(value)
        found.update(logins, map(unquote, logins))
        if is_secret_name(name):
            found.add(value)
            found.update(_QUOTED.findall(value))
            found.update(_in_json(value))
            # OpenTelemetry's headers: NAME=VALUE,NAME=VALUE, escaped as in an address; "Bearer TOKEN" has two words.
            for one in value.split(",") if name.lower().endswith("_headers") else ():
                held_there = one.partition("=")[2].strip()
                found.update((held_there, unquote(held_there), *unquote(held_there).split()[-1:]))
    return tuple(sorted((one for one in found if len(one) >= _LEAST), key=len, reverse=True))


def _in_json(value: object) -> Iterator[str]:
    """Yield the secrets of an Airflow connection that is written as JSON. Its `extra` may be JSON in JSON."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    if isinstance(value, dict):
        for name, inner in value.items():
            if isinstance(inner, str) and is_secret_name(name):
                yield inner
            else:
                yield from _in_json(inner)
