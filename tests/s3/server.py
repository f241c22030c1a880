"""A real S3 server for tests: versitygw on a folder, on a free port of the loopback interface."""

from __future__ import annotations

import os
import secrets
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.ports import free_port

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = REPOSITORY / ".tools" / "bin" / "versitygw"
REGION = "us-east-1"


class S3Server:
    """A server that can be stopped and started again: same port, same credentials, same data."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.log = folder / "server.log"
        self._versions = folder / "versions"
        for path in (self.data, self._versions):
            path.mkdir(parents=True)
        self.access_key = f"test{secrets.token_hex(8)}"
        self.secret_key = secrets.token_hex(20)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        command = [str(PROGRAM), "--port", f"127.0.0.1:{self.port}", "--region", REGION, "--keep-alive", "--quiet"]
        command += ["--health", "/healthz", "posix", "--versioning-dir", str(self._versions), str(self.data)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, "ROOT_ACCESS_KEY": self.access_key, "ROOT_SECRET_KEY": self.secret_key},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 60
        while not self._is_healthy():
            assert self.runs, f"the S3 server ended: {self.log.read_text()[-2000:]}"
            assert time.monotonic() < deadline, "the S3 server did not come up"
            time.sleep(0.02)

    def stop(self) -> None:
        """End it as a service manager does."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """End it in the middle of whatever it does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.endpoint}/healthz", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
