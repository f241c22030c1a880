"""Serving stores: a SQLite file, and a Redis server of the machine if there is one."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from streamwarden.serving.redis import RedisStore
from streamwarden.serving.sqlite import SqliteStore
from streamwarden.serving.store import ServingStore

Opener = Callable[..., ServingStore]


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Redis server of the test run's own."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("no redis-server here: Debian has it in the package of that name")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("redis")
    command = [program, "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        _await(port)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.kill()
        server.wait()


def _await(port: int) -> None:
    end = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < end, "redis-server does not answer"
            time.sleep(0.05)
        else:
            return


@pytest.fixture(params=["sqlite", "redis"])
def open_it(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Open the same store each time it is called, as several drivers and readers would."""
    opened: list[ServingStore] = []

    def open_it(expire_after: timedelta | None = None) -> ServingStore:
        if request.param == "sqlite":
            store: ServingStore = SqliteStore(tmp_path / "table.sqlite", expire_after, writes=True)
        else:
            store = RedisStore(request.getfixturevalue("redis_url"), tmp_path.name, expire_after)
        opened.append(store)
        return store

    yield open_it
    for store in opened:
        store.close()
