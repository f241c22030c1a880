"""A reverse proxy before a real S3 server that makes trouble: refusals, silence, lost requests and answers."""

from __future__ import annotations

import http.client
import random
import re
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?>'
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)


@dataclass
class Trouble:
    """What happens to requests: shares between 0 and 1, each drawn by itself. `methods` limits it to some."""

    slow_down: float = 0.0
    lose_request: float = 0.0
    lose_answer: float = 0.0
    delay_s: float = 0.0
    methods: tuple[str, ...] = ("DELETE", "GET", "HEAD", "POST", "PUT")


class Hold:
    """Holds the first request whose line, such as ``PUT /bucket/key``, ends with a pattern, until it is released.

    `reached` is set when the request arrives, `answered` when the server has answered it with `status`.
    """

    def __init__(self, pattern: str) -> None:
        self.reached = threading.Event()
        self.answered = threading.Event()
        self.status: int | None = None
        self._pattern = re.compile(pattern + "$")
        self._over = threading.Event()
        self._lock = threading.Lock()

    def release(self) -> None:
        self._over.set()

    def takes(self, line: str) -> bool:
        """Return whether this is the held request; blocks until it is released."""
        with self._lock:
            if self.reached.is_set() or not self._pattern.search(line):
                return False
            self.reached.set()
        self._over.wait()
        return True


class Proxy:
    """Forwards as it is asked, under the name that it was asked by: signatures cover it, and stay valid.

    `trouble` and `hold` may be changed at any time; `seen` counts what was done.
    """

    def __init__(self, upstream: str, *, seed: int = 1) -> None:
        self.trouble = Trouble()
        self.hold: Hold | None = None
        self.seen = {"forwarded": 0, "slow_down": 0, "lose_request": 0, "lose_answer": 0}
        self._upstream = urlsplit(upstream).netloc
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def _handle(self) -> None:
                proxy._handle(self)

            # The names that BaseHTTPRequestHandler looks for.
            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _draw(self, method: str) -> str:
        trouble = self.trouble
        with self._lock:
            if method in trouble.methods:
                for kind in ("slow_down", "lose_request", "lose_answer"):
                    if self._random.random() < getattr(trouble, kind):
                        self.seen[kind] += 1
                        return kind
            self.seen["forwarded"] += 1
        return "forwarded"

    def _handle(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        time.sleep(self.trouble.delay_s)
        hold = self.hold
        held = hold is not None and hold.takes(f"{request.command} {urlsplit(request.path).path}")
        fate = self._draw(request.command)
        if fate == "lose_request":
            request.close_connection = True
            return
        if fate == "slow_down":
            _answer(request, 503, [("Content-Type", "application/xml")], _SLOW_DOWN)
            return
        upstream = http.client.HTTPConnection(self._upstream, timeout=60)
        try:
            upstream.putrequest(request.command, request.path, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers.items():
                if name.lower() not in ("connection", "expect"):
                    upstream.putheader(name, value)
            upstream.endheaders(body or None)
            answer = upstream.getresponse()
            content = answer.read()
            headers = answer.getheaders()
        except (OSError, http.client.HTTPException):
            # The server is away: the client shall see what it would see without a proxy.
            request.close_connection = True
            return
        finally:
            upstream.close()
        if hold is not None and held:
            hold.status = answer.status
            hold.answered.set()
        if fate == "lose_answer":
            request.close_connection = True
            return
        _answer(request, answer.status, headers, content)


def _answer(request: BaseHTTPRequestHandler, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
    request.send_response_only(status)
    is_head = request.command == "HEAD"
    for name, value in headers:
        # Of an answer to HEAD the length is the object's; of any other, what is sent.
        if name.lower() not in ("connection", "transfer-encoding") and (is_head or name.lower() != "content-length"):
            request.send_header(name, value)
    if not is_head:
        request.send_header("Content-Length", str(len(content)))
    request.end_headers()
    if not is_head:
        request.wfile.write(content)
