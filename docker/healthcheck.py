"""Health checks for docker-compose.yml, with nothing but the standard library: they run every few seconds.

``healthcheck.py URL [PATH=VALUE]`` succeeds if the URL answers 200 and, if asked for, the JSON it answers has that
value at that dotted path: ``scheduler.status=healthy``.

``airflow jobs check``, which Airflow's own compose file uses, costs about 8 s of CPU a call.
"""

from __future__ import annotations

import json
import sys
from urllib.request import urlopen

TIMEOUT = 8.0


def fetch(url: str) -> bytes:
    """Return what the URL answers; an OSError if it does not, or with a status that is no success."""
    with urlopen(url, timeout=TIMEOUT) as answer:
        return bytes(answer.read())


def value_at(path: str, body: bytes) -> object:
    """Return what the JSON has at a dotted path, or None."""
    found = json.loads(body)
    for step in path.split("."):
        found = found.get(step) if isinstance(found, dict) else None
    return found


def main(arguments: list[str]) -> int:
    """Check once; 0 is healthy, 1 is not, and says why."""
    url, *conditions = arguments
    try:
        body = fetch(url)
    except OSError as error:
        sys.stdout.write(f"{url}: {error}\n")
        return 1
    for condition in conditions:
        path, _, wanted = condition.partition("=")
        if str(found := value_at(path, body)) != wanted:
            sys.stdout.write(f"{url}: {path} is {found}, not {wanted}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
