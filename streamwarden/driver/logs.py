"""Log files of one incarnation: ``driver.log`` (ours), ``spark.log`` (the JVM's), ``console.log`` (prints); rotated."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, TextIO

import structlog

from streamwarden.model.profile import LogSpec
from streamwarden.redaction import redacted
from streamwarden.spark.java_options import quoted
from streamwarden.store.layout import CONSOLE_LOG

__all__ = ["RecordContext", "configure_logging", "rotate_console", "write_log4j"]

# WARN, like PySpark's default; on small tables, Delta's messages at WARN are irrelevant.
_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {folder}/spark.log
appender.file.filePattern = {pattern}/spark.log.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSS}}{{UTC}}Z %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = {max_bytes}
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = {backups}
logger.plans.name = org.apache.spark.sql.catalyst.util.SparkStringUtils
logger.plans.level = error
logger.rdd.name = org.apache.spark.rdd
logger.rdd.level = error
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
"""


class _LogFile(RotatingFileHandler):
    """A log file whose disk may be full: it drops records that can't be written, and reports this once it can write.

    Does not report on standard error, as :mod:`logging` does. That is the console's pipe, whose only reader writes to
    such a file itself: the reader would wait for itself, and every thread that logs would wait for the reader.
    """

    def __init__(self, path: Path, spec: LogSpec) -> None:
        super().__init__(path, maxBytes=spec.max_bytes, backupCount=spec.backups)
        self._missing = 0
        self._why = ""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text, without the secrets of the environment."""
        return redacted(super().format(record))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; if records were dropped before it, report their number after it."""
        missing = self._missing
        super().emit(record)
        # Report afterwards: a failed record stays in the stream's buffer, and would be repeated by each try.
        if missing and self._missing == missing:
            self._missing = 0
            words = f"up to {missing} records before the last one could not be written: {self._why}"
            told = logging.makeLogRecord(
                {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING", "msg": words}
            )
            self.filter(told)
            super().emit(told)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Count a record that could not be written or formatted."""
        self._missing += 1
        self._why = f"{sys.exc_info()[1]!r}"
        if record.lineno:
            self._why += f" ({record.pathname}, line {record.lineno})"
        # A failed rotation may leave a closed file, which would never accept a record again.
        if self.stream is not None and self.stream.closed:
            self.stream = None


class _Console(logging.StreamHandler[TextIO]):
    """Writes records to standard output, which a cluster keeps for its containers."""

    def __init__(self) -> None:
        super().__init__(sys.stdout)

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text, without the secrets of the environment."""
        return redacted(super().format(record))


class RecordContext(logging.Filter):
    """Adds the job, the incarnation and the batch in flight to each record; drops none.

    Parameters
    ----------
    job, incarnation
        The driver's.
    """

    def __init__(self, job: str, incarnation: str) -> None:
        super().__init__()
        self._of = {"job": job, "incarnation": incarnation}
        self.batch: Callable[[], int | None] = lambda: None
        """Returns the batch in flight; None between batches."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the context to the record."""
        # Read now, and not when it is formatted: by then another batch may be in flight.
        record.__dict__.update(self._of, batch=self.batch())
        return True


def configure_logging(
    folder: Path, job: str, incarnation: str, spec: LogSpec, *, console: bool = False
) -> RecordContext:
    """Send this process's log records to ``driver.log``, each with time (UTC), level, job and incarnation.

    JSON records also contain the batch in flight, the logger, and an exception's traceback in a separate field.

    Parameters
    ----------
    console
        Whether standard output gets the records as well.

    Returns
    -------
    RecordContext
        The caller sets its source of the batch in flight.
    """
    folder.mkdir(parents=True, exist_ok=True)
    context = RecordContext(job, incarnation)
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    # py4j logs every broken connection of a stopping JVM as an error; one of its modules uses the root logger.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    handlers: list[logging.Handler] = [_LogFile(folder / "driver.log", spec)]
    if console:
        handlers.append(_Console())
    for handler in handlers:
        handler.setFormatter(_json() if spec.format == "json" else _text())
        handler.addFilter(context)
        handler.addFilter(lambda record: record.name != "root" or record.module != "java_gateway")
        root.addHandler(handler)
    # It logs at each start where it found credentials, which is noise.
    logging.getLogger("botocore").setLevel(logging.WARNING)
    # A line for each request.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    return context


def _text() -> logging.Formatter:
    formatter = logging.Formatter(
        "%(asctime)s.%(msecs)03dZ %(levelname)s %(job)s %(incarnation)s %(message)s", datefmt="%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    return formatter


def _json() -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            _begin,
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            # Job, incarnation, batch, and the fields of a record's `extra`.
            structlog.stdlib.ExtraAdder(),
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            structlog.processors.EventRenamer("message"),
            structlog.processors.JSONRenderer(ensure_ascii=False),
        ],
    )


def _begin(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Put the record's time first, for people who read the file itself."""
    at = datetime.fromtimestamp(event["_record"].created, UTC).isoformat(timespec="milliseconds")
    return {"time": at.replace("+00:00", "Z"), **event}


def rotate_console(folder: Path, spec: LogSpec) -> None:
    """Redirect the output of this process, its JVM and its Python workers to ``console.log``, rotated, from now on.

    The launcher has opened that file for earlier output. Without rotation, a stray print in a job would fill a disk
    within weeks. Output at the very moment of a kill may be lost.
    """
    handler = _LogFile(folder / CONSOLE_LOG, spec)
    handler.setFormatter(logging.Formatter("%(message)s"))
    read_end, write_end = os.pipe()
    for standard in (1, 2):
        # Inheritable: the JVM and its workers write into the same pipe.
        os.dup2(write_end, standard, inheritable=True)
    os.close(write_end)

    def pump() -> None:
        with os.fdopen(read_end, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                handler.emit(logging.makeLogRecord({"msg": line.rstrip("\n")}))

    threading.Thread(target=pump, name="console", daemon=True).start()


def write_log4j(folder: Path, spec: LogSpec) -> str:
    """Write the JVM's log configuration to the log folder, and return the JVM option that names it."""
    path = folder / "log4j2.properties"
    # Java reads a properties file as Latin-1, with escapes like JSON's; in the pattern, a % begins a field.
    name = json.dumps(str(folder))[1:-1]
    text = _LOG4J.format(folder=name, pattern=name.replace("%", "%%"), max_bytes=spec.max_bytes, backups=spec.backups)
    path.write_text(text, encoding="ascii")
    return quoted(f"-Dlog4j2.configurationFile={path.as_uri()}")
