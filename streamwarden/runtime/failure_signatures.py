"""Patterns that recognise a known failure in an error's text or in a log.

Every pattern matches a failure that was provoked with Spark 4.2 and Delta 4.4, or a sibling error condition from their
lists of conditions. Does not guess at unknown failures.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

from streamwarden.errors import ErrorCode

__all__ = ["OUT_OF_HEAP_EXITS", "Places", "Recognised", "fatal_in_log", "recognise"]

OUT_OF_HEAP_EXITS = (3, 52)
"""Exit codes: of the JVM's own ExitOnOutOfMemoryError, and of Spark's handler for uncaught errors."""

_LENGTH = 600


@dataclass(frozen=True)
class Recognised:
    """A known failure.

    Parameters
    ----------
    code
        A key of the catalogue of errors.
    evidence
        The line that matched, at most 600 characters.
    """

    code: ErrorCode
    evidence: str


@dataclass(frozen=True)
class Places:
    """The locations of a job's files: a missing file has one meaning in the source and another in the outputs.

    Parameters
    ----------
    sources
        The folders that the job reads, as passed to Spark.
    outputs
        The folders of its tables.
    """

    sources: Sequence[str] = field(default_factory=tuple)
    outputs: Sequence[str] = field(default_factory=tuple)


@dataclass(frozen=True)
class _Signature:
    code: ErrorCode
    pattern: re.Pattern[str]
    # A second pattern that must match, for a condition with several possible failures. Its match is the evidence.
    because: re.Pattern[str] | None = None


def _signature(code: ErrorCode, pattern: str, because: str | None = None) -> _Signature:
    return _Signature(code, re.compile(pattern), re.compile(because) if because else None)


# Does not match a lack of threads: the system limits threads, and more heap makes the lack worse.
_OUT_OF_MEMORY = (
    r"java\.lang\.OutOfMemoryError(?!: unable to create)"
    r"|_STORE_PROVIDER_OUT_OF_MEMORY\b"
)

# The first match counts. Refused store access and a full heap may appear in any other error, so they come first.
_SIGNATURES = (
    _signature("DISK_FULL", r"No space left on device"),
    _signature("S3_REFUSED", r"AccessDeniedException: s3a://|\(Service: S3, Status Code: 403\b"),
    _signature("OUT_OF_MEMORY", _OUT_OF_MEMORY),
    # Before damage: a file that can't be fetched is not damaged. The statuses as in storage/s3_client.py.
    _signature("S3_THROTTLED", r"\(Service: S3, Status Code: (?:429|503)\b"),
    _signature(
        "S3_UNREACHABLE",
        r"SdkClientException: Unable to execute HTTP request|\(Service: S3, Status Code: 5(?!01|03)\d\d\b",
    ),
    _signature("PYTHON_WORKER_DIED", r"Python worker exited unexpectedly"),
    # Loading may also fail because a store does not answer: only these causes mean that the file itself is damaged.
    _signature(
        "CHECKPOINT_DAMAGED",
        r"\[CANNOT_LOAD_STATE_STORE\.",
        r"does not exist|Stream is corrupted|Stream ended prematurely|ChecksumException|ZipException"
        r"|RocksDBException: .*[Cc]orrupt|CANNOT_READ_\w+|UNEXPECTED_FILE_SIZE|INVALID_CHANGE_LOG_READER_VERSION"
        # Raised without a message for a file of 0 bytes, and with a message if a connection ends.
        r"|(?m:java\.io\.EOFException$)",
    ),
    _signature(
        "CHECKPOINT_DAMAGED",
        r"Failed to read log file .+/(?:offsets|commits|sources/\d+)/"
        r"|\[(?:CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED|STATE_STORE_ROW_CHECKSUM_VERIFICATION_FAILED"
        r"|STREAMING_CHECKPOINT_MISSING_METADATA_FILE|STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY)\]",
    ),
    _signature(
        "STATE_SCHEMA_CHANGED",
        r"\[(?:STATE_STORE_(?:KEY|VALUE)_SCHEMA_NOT_COMPATIBLE|STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA"
        r"|STATE_STORE_(?:KEY|VALUE)_ROW_FORMAT_VALIDATION_FAILURE|STATE_STORE_COLUMN_FAMILY_SCHEMA_INCOMPATIBLE"
        r"|STATE_STORE_INVALID_(?:VALUE_SCHEMA_EVOLUTION|VARIABLE_TYPE_CHANGE|CONFIG_AFTER_RESTART))\]",
    ),
    _signature(
        "SOURCE_SCHEMA_CHANGED",
        r"\[(?:DELTA_SCHEMA_CHANGED(?:_WITH_VERSION|_WITH_STARTING_OPTIONS)?"
        r"|DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE(?:_USE_SCHEMA_LOG)?|DELTA_STREAMING_SCHEMA_MISMATCH_ON_RESTART)\]",
    ),
    _signature("SOURCE_ROWS_CHANGED", r"\[(?:DELTA_SOURCE_TABLE_IGNORE_CHANGES|DELTA_SOURCE_IGNORE_DELETE)\]"),
    _signature(
        "SOURCE_REPLACED",
        # The last pattern: a file source that resumes from offsets of a Delta table.
        r"\[DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE\]|No usable value for logOffset",
    ),
    _signature(
        "SOURCE_DATA_GONE",
        r"\[(?:DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE|DELTA_MISSING_FILES_UNEXPECTED_VERSION"
        r"|DELTA_STREAMING_TRAILING_COMMIT_MISSING)\]",
    ),
    # Raised when the query starts, before its first batch.
    _signature(
        "JOIN_WITHOUT_WATERMARK",
        r"Stream-stream \w+ join between two streaming DataFrame/Datasets is not supported without a watermark",
    ),
    # From the traceback of the Python worker in which the job opens landed files.
    _signature("SOURCE_DATA_GONE", r"\bLandedFileGone: "),
    _signature(
        # Spark's connector omits the condition's name.
        "SOURCE_DATA_GONE",
        r"Some data may have been lost because they are not available in Kafka any more",
        r"Reason: ",
    ),
    # Raised by the query itself, see driver/pipeline/values.py.
    _signature("SOURCE_SCHEMA_UNKNOWN", r"Unknown schema: subject "),
    _signature(
        "CONCURRENT_WRITER",
        r"\[(?:DELTA_CONCURRENT_(?:APPEND|DELETE_DELETE|DELETE_READ|TRANSACTION|WRITE)|DELTA_METADATA_CHANGED"
        # The last condition concerns the checkpoint's logs, not a table's log.
        r"|DELTA_PROTOCOL_CHANGED|CONCURRENT_STREAM_LOG_UPDATE)[.\]]",
    ),
)

_FILE_GONE = re.compile(r"\[FAILED_READ_FILE\.FILE_NOT_EXIST\].* reading file (.+?)\. File does not exist")
_LOG_GONE = re.compile(
    r"\[(?:DELTA_TRUNCATED_TRANSACTION_LOG|DELTA_VERSIONS_NOT_CONTIGUOUS|DELTA_LOG_FILE_NOT_FOUND)\]"
)
_TABLE_GONE = re.compile(
    r"\[(?:DELTA_MISSING_DELTA_TABLE|DELTA_TABLE_NOT_FOUND|DELTA_PATH_DOES_NOT_EXIST|PATH_NOT_FOUND)\]"
)
# The messages of a JVM that ends by itself, and of a driver that cannot write its exit. Other log lines may be about an
# earlier problem.
_FATAL = (
    _signature("S3_REFUSED", r"its end could not be written down: \[S3_REFUSED\]"),
    _signature("DISK_FULL", r"its end could not be written down: .*No space left on device"),
    _signature("OUT_OF_MEMORY", _OUT_OF_MEMORY),
    _signature("JVM_CRASHED", r"A fatal error has been detected by the Java Runtime Environment"),
)
_PREFIX = re.compile(r"^(?:: |Caused by: )+")


def recognise(text: str, places: Places | None = None) -> Recognised | None:
    """Return the known failure in an error's text, or None.

    Parameters
    ----------
    text
        The whole text, with the JVM's causes: the first line often belongs to a wrapper.
    places
        The locations of the job's files; without them a missing data file is not recognised.
    """
    for signature in _SIGNATURES:
        found = _match(signature, text)
        if found is not None:
            return found
    return _missing(text, places or Places())


def fatal_in_log(text: str) -> Recognised | None:
    """Return the cause of death of a process from the end of its log, or None."""
    for signature in _FATAL:
        found = _match(signature, text)
        if found is not None:
            return found
    return None


def _match(signature: _Signature, text: str) -> Recognised | None:
    match = signature.pattern.search(text)
    if match is None:
        return None
    if signature.because is None:
        return Recognised(signature.code, _line(text, match.start()))
    # Searches after the condition only: text before it may belong to another error.
    because = signature.because.search(text, match.start())
    return Recognised(signature.code, _line(text, because.start())) if because else None


def _missing(text: str, places: Places) -> Recognised | None:
    match = _FILE_GONE.search(text)
    if match is not None:
        if any(_within(match[1], source) for source in places.sources):
            return Recognised("SOURCE_DATA_GONE", _line(text, match.start()))
        if any(_within(match[1], output) for output in places.outputs):
            return Recognised("OUTPUT_DATA_GONE", _line(text, match.start()))
        return None
    match = _TABLE_GONE.search(text)
    if match is not None:
        line = _line(text, match.start())
        return Recognised("OUTPUT_GONE", line) if _names_one(line, places.outputs) else None
    match = _LOG_GONE.search(text)
    if match is not None:
        line = _line(text, match.start())
        return Recognised("OUTPUT_DATA_GONE" if _names_one(line, places.outputs) else "SOURCE_DATA_GONE", line)
    return None


def _names_one(line: str, folders: Sequence[str]) -> bool:
    return any(_plain(folder) in _plain(line) for folder in folders)


def _within(path: str, folder: str) -> bool:
    return bool(folder) and _plain(path).startswith(_plain(folder).rstrip("/") + "/")


def _plain(path: str) -> str:
    """Remove a local file's scheme, which Hadoop writes with one slash or three, and undo Spark's escapes."""
    return unquote(re.sub(r"\bfile:/+", "/", path))


def _line(text: str, at: int) -> str:
    begin = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    line = text[begin : end if end >= 0 else len(text)].strip()
    # The rest of the line names options of a hand-written query; a job's YAML has none of them.
    return _PREFIX.sub("", line).partition(" This is currently not supported. If ")[0][:_LENGTH]
