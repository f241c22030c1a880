"""Lines of ``driver.log``, as text and as JSON."""

from __future__ import annotations

import json
import logging
import re
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from py4j.java_gateway import GatewayClient, GatewayParameters

from streamwarden.airflow.logtail import log_tail
from streamwarden.driver.logs import RecordContext, configure_logging, write_log4j
from streamwarden.model.profile import LogSpec
from streamwarden.runtime.log_lines import readable
from tests.batches import make_place

pytestmark = pytest.mark.unit

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO lamp i1 three rows\n")


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    """What is configured is the whole process's."""
    names = ("", "py4j", "botocore")
    levels = [logging.getLogger(name).level for name in names]
    before = logging.root.handlers[:]
    yield
    for handler in set(logging.root.handlers) - set(before):
        handler.close()
        logging.root.removeHandler(handler)
    for name, level in zip(names, levels, strict=True):
        logging.getLogger(name).setLevel(level)


def lines_of(folder: Path, words: str) -> list[str]:
    """Return the lines with these words: threads that other tests left may have something to say too."""
    return [line for line in (folder / "driver.log").read_text().splitlines(keepends=True) if words in line]


def configured(folder: Path, form: str) -> RecordContext:
    return configure_logging(folder, "lamp", "i1", LogSpec.model_validate({"format": form}))


def test_text_is_the_default_and_has_job_and_incarnation(tmp_path: Path) -> None:
    configure_logging(tmp_path, "lamp", "i1", LogSpec())
    logging.getLogger("some.job").info("%s rows", "three")
    (line,) = lines_of(tmp_path, "three rows")
    assert LINE.fullmatch(line)


def test_json_has_context_fields_and_exceptions(tmp_path: Path) -> None:
    context = configured(tmp_path, "json")
    log = logging.getLogger("some.job")
    log.info("%s rows", "three")
    context.batch = lambda: 12
    log.warning('a "quoted" ümlaut\nin two lines', extra={"file": "a.txt", "path": Path("x")})
    try:
        raise ValueError("no such thing")
    except ValueError:
        log.exception("it failed")
    lines = lines_of(tmp_path, "some.job")
    first, second, third = (json.loads(line) for line in lines)
    assert {name: value for name, value in first.items() if name != "time"} == {
        "level": "info",
        "logger": "some.job",
        "job": "lamp",
        "incarnation": "i1",
        "batch": None,
        "message": "three rows",
    }
    assert lines[0].startswith('{"time": "2') and first["time"].endswith("Z")
    assert (second["batch"], second["file"], second["message"]) == (12, "a.txt", 'a "quoted" ümlaut\nin two lines')
    assert third["message"] == "it failed" and third["exception"].endswith("ValueError: no such thing")
    assert "Traceback" in third["exception"] and third["level"] == "error"


def test_broken_connections_to_the_jvm_are_not_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    configure_logging(tmp_path, "lamp", "i1", LogSpec())
    # Closes every connection without an answer, as a JVM that stops.
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        threading.Thread(target=server.serve_forever).start()
        GatewayClient(gateway_parameters=GatewayParameters(port=server.server_address[1])).send_command("c\n")
        server.shutdown()
    assert "while sending command" in caplog.text
    assert not lines_of(tmp_path, "while sending command") and not lines_of(tmp_path, "py4j")


def test_a_line_in_json_reads_as_text_does(tmp_path: Path) -> None:
    configured(tmp_path, "json")
    logging.getLogger("some.job").info("three rows")
    (line,) = lines_of(tmp_path, "three rows")
    assert LINE.fullmatch(readable(line))


@pytest.mark.parametrize(
    "line", ["", "plain\n", '{"half', '{"time": 1}\n', "{}", "[1]", '{"time": 1, "level": 2, "message": 3}']
)
def test_what_is_no_record_stays_as_it_is(line: str) -> None:
    assert readable(line) == line


def test_airflow_shows_the_end_of_a_log_in_json_as_text(tmp_path: Path) -> None:
    workspace = make_place(tmp_path)
    configured(workspace.log_dir("lamp", "i1"), "json")
    try:
        raise ValueError("no such thing")
    except ValueError:
        logging.getLogger("some.job").exception("it failed")
    shown = log_tail(workspace, "lamp", "i1")
    assert "ERROR lamp i1 it failed\nTraceback" in shown and "ValueError: no such thing" in shown
    assert '{"' not in shown


FULL_DISK = """
import logging, os, resource, sys, time
from pathlib import Path
from streamwarden.model.profile import LogSpec
from streamwarden.driver.logs import configure_logging, rotate_console

folder, spec = Path(sys.argv[1]), LogSpec(format="json")
configure_logging(folder, "lamp", "i1", spec)
rotate_console(folder, spec)
log, console = logging.getLogger("some.job"), folder / "console.log"


def printed(words):
    print(words, flush=True)
    for _ in range(200):
        if words in console.read_text():
            return
        time.sleep(0.05)


log.info("before")
printed("printed before")
# No file takes a byte more, as on a full disk; pipes do.
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
for number in range(2000):
    log.info("lost %d", number)
    print("lost " + "x" * 100)
sys.stdout.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
log.info("after")
printed("printed after")
os._exit(0)
"""


def test_a_full_disk_stops_no_driver_and_its_logs_go_on_when_there_is_room(tmp_path: Path) -> None:
    # Standard output and error are the process's, so it needs one of its own.
    subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], check=True, timeout=60)
    before, *_, after, missing = map(json.loads, (tmp_path / "driver.log").read_text().splitlines())
    assert (before["message"], after["message"]) == ("before", "after")
    assert missing["message"].startswith("up to 2000 records before the last one could not be written: OSError(")
    assert (missing["level"], missing["job"], missing["incarnation"]) == ("warning", "lamp", "i1")
    console = (tmp_path / "console.log").read_text()
    assert "printed before" in console and "printed after" in console and "Traceback" not in console


def test_a_log_that_could_not_be_rotated_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure_logging(tmp_path, "lamp", "i1", LogSpec(max_bytes=2**20))
    (handler,) = (one for one in logging.root.handlers if getattr(one, "baseFilename", "").startswith(str(tmp_path)))
    log = logging.getLogger("some.job")

    def closed_only() -> None:
        handler.stream.close()  # type: ignore[attr-defined]
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(handler, "shouldRollover", lambda _: True)
        patch.setattr(handler, "doRollover", closed_only)
        log.info("lost")
    log.info("three rows")
    written, missing = (tmp_path / "driver.log").read_text().splitlines(keepends=True)[-2:]
    assert LINE.fullmatch(written) and "up to 1 records" in missing and "test_logs.py, line" in missing


def test_the_jvms_log_lies_in_a_folder_of_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "zürich 50%d 🚕"
    folder.mkdir()
    option = write_log4j(folder, LogSpec())
    assert option.startswith('"-Dlog4j2.configurationFile=file:///') and " " not in option and "50%25d" in option
    # As Java reads it: Latin-1 with escapes, and a pattern's own percent sign doubled.
    lines = (folder / "log4j2.properties").read_bytes().decode("ascii").splitlines()
    name = r"z\u00fcrich 50%d \ud83d\ude95/spark.log"
    assert f"appender.file.fileName = {tmp_path}/{name}" in lines
    assert f"appender.file.filePattern = {tmp_path}/{name.replace('%', '%%')}.%i" in lines
