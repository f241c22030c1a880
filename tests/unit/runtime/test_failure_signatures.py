from __future__ import annotations

from pathlib import Path

import pytest

from streamwarden.runtime.failure_signatures import Places, recognise
from streamwarden.runtime.postmortem import LastWords, last_words

pytestmark = pytest.mark.unit

PLACES = Places(("/data/tables/facts",), ("/data/tables/counted",))

# As Spark 4.2 and Delta 4.4 wrote them when the failures were provoked; traces cut short.
CALL = "An error occurred while calling o124.localCheckpoint.\n"
NO_WATERMARK = (
    "Stream-stream LeftOuter join between two streaming DataFrame/Datasets is not supported without a watermark in the"
    " join keys, or a watermark on the nullable side and an appropriate range condition;\nJoin LeftOuter, (a#1 = b#2)"
)
MISSING = f"""{CALL}: org.apache.spark.SparkException: [CANNOT_LOAD_STATE_STORE.CANNOT_READ_STREAMING_STATE_FILE] An \
error occurred during loading state. Error reading streaming state file of file:/ck/state/0/0/3.changelog does not \
exist. If the stream job is restarted with a new or updated state operation, please create a new checkpoint location \
or clear the existing checkpoint location. SQLSTATE: 58030
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.failedToReadStreamingStateFileError(QueryExecutionErrors.scala)
Caused by: java.io.FileNotFoundException: File file:/ck/state/0/0/3.changelog does not exist
"""
CORRUPT = f"""{CALL}: org.apache.spark.SparkException: [CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred \
during loading state.  SQLSTATE: 58030
\tat org.apache.spark.sql.execution.streaming.state.RocksDB.load(RocksDB.scala)
Caused by: java.io.IOException: Stream is corrupted
\tat net.jpountz.lz4.LZ4BlockInputStream.refill(LZ4BlockInputStream.java:215)
Caused by: net.jpountz.lz4.LZ4Exception: Error decoding offset 30 of input buffer
"""
CUT = CORRUPT.split("Caused by")[0] + "Caused by: java.io.EOFException: Stream ended prematurely\n"
STORE_AWAY = CORRUPT.split("Caused by")[0] + "Caused by: java.net.ConnectException: Connection refused\n"
EMPTY = CORRUPT.split("Caused by")[0] + "Caused by: java.io.EOFException\n\tat java.base/java.io.DataInputStream"
CONNECTION_ENDS = CORRUPT.split("Caused by")[0] + "Caused by: java.io.EOFException: End of connection\n"
OFFSETS = """[STREAM_FAILED] Query [id = f5, runId = d2] terminated with exception: Failed to read log file \
file:/ck/offsets/2. Incomplete log file SQLSTATE: XXKST
=== Streaming Query ==="""
VALUE_SCHEMA = """[STREAM_FAILED] Query [id = f5, runId = 1a] terminated with exception: \
[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] Provided value schema does not match existing state value schema.
Please check number and type of fields."""
OPERATORS = """[STREAM_FAILED] Query [id = f5, runId = de] terminated with exception: \
[STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA] Streaming stateful operator name does not match with the \
operator in state metadata."""
COLUMNS = """[STREAM_FAILED] Query [id = 6b, runId = ba] terminated with exception: \
[DELTA_SCHEMA_CHANGED_WITH_VERSION] Detected schema change in version 3:
streaming source schema: root
 |-- key: string (nullable = true)"""
CHANGED = """[STREAM_FAILED] Query [id = 1b, runId = 3f] terminated with exception: \
[DELTA_SOURCE_TABLE_IGNORE_CHANGES] Detected a data update (for example DELETE (Map(predicate -> "key = 1"))) in the \
source table at version 4. This is currently not supported. If this is going to happen regularly and you are okay to \
skip changes, set the option 'skipChangeCommits' to 'true'."""
OTHER_TABLE = """[STREAM_FAILED] Query [id = 9e, runId = 83] terminated with exception: \
[DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE] The streaming query was reading from an unexpected Delta table."""
OTHER_KIND = """[STREAM_FAILED] Query [id = f5, runId = 56] terminated with exception: No usable value for logOffset
Did not find value which can be converted into long SQLSTATE: XXKST"""
LOG_GONE = """[STREAM_FAILED] Query [id = 6f, runId = 6f] terminated with exception: \
[DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE] If you never deleted it, it's likely your query is lagging behind."""
NO_SCHEMA = """An error occurred while calling o290.localCheckpoint.
: org.apache.spark.SparkRuntimeException: [USER_RAISED_EXCEPTION] Unknown schema: subject sales-value has no schema of \
id 2: topic sales, partition 0, offset 6 SQLSTATE: P0001
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.raiseError(QueryExecutionErrors.scala:2987)
"""
TOPIC = """An error occurred while calling o290.localCheckpoint.
: org.apache.spark.sql.kafka010.KafkaIllegalStateException: Some data may have been lost because they are not \
available in Kafka any more;
either the data was aged out by Kafka or the topic may have been deleted before all the data in the
topic was processed.
If you don't want your streaming query to fail on such cases, set the source option failOnDataLoss to false.
Reason: Could not read records in offset [400, 600) for topic partition trips-0
with consumer group streamwarden-records-e62704f3-executor.
\tat org.apache.spark.sql.kafka010.KafkaExceptions$.couldNotReadOffsetRange(KafkaExceptions.scala:94)"""
DATA_GONE = f"""{CALL}: org.apache.spark.SparkException: [FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while \
reading file file:/data/tables/facts/part-00000-1a3e-c000.snappy.parquet. File does not exist. It is possible the \
underlying files have been updated.
Caused by: java.io.FileNotFoundException: File file:/data/tables/facts/part-00000-1a3e-c000.snappy.parquet does not \
exist"""
HEAP = f"""{CALL}: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 58.0 failed 1 \
times, most recent failure: Lost task 0.0 in stage 58.0 (TID 34): java.lang.OutOfMemoryError: Java heap space
\tat java.base/java.util.Arrays.copyOf(Arrays.java:3537)"""
WORKER = f"""{CALL}: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 61.0 failed 1 \
times, most recent failure: Lost task 0.0 in stage 61.0 (TID 37): org.apache.spark.SparkException: Python worker \
exited unexpectedly (crashed)
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator$$anonfun$1.applyOrElse(PythonRunner.scala)"""
FORBIDDEN = """An error occurred while calling o241.load.
: java.nio.file.AccessDeniedException: s3a://bucket/p/tables/t/_delta_log: getFileStatus on \
s3a://bucket/p/tables/t/_delta_log: software.amazon.awssdk.services.s3.model.S3Exception: Forbidden (Service: S3, \
Status Code: 403, Request ID: E7K1, Extended Request ID: Tt9I=):null"""
SIGNATURE = """An error occurred while calling o259.save.
: java.nio.file.AccessDeniedException: s3a://bucket/p/tables/u/_delta_log: listObjects() on s3a://bucket/p/tables/u: \
software.amazon.awssdk.services.s3.model.S3Exception: The request signature we calculated does not match the \
signature you provided. Check your key and signing method. (Service: S3, Status Code: 403, Request ID: DC5T)"""
AWAY = """listObjects() on s3a://bucket/p/arrivals/numbers/g000001: software.amazon.awssdk.core.exception.\
SdkClientException: Unable to execute HTTP request: Connect to 127.0.0.1:44091 [/127.0.0.1] failed: Connection refused \
(SDK Attempt Count: 4): Connection refused
=== Streaming Query ==="""
THROTTLED = FORBIDDEN.replace("AccessDenied", "AWSServiceThrottled").replace("403", "503")
BROKEN = FORBIDDEN.replace("AccessDeniedException", "AWSStatus500Exception").replace("403", "500")
CONCURRENT = """[DELTA_CONCURRENT_APPEND.WITHOUT_HINT] Transaction conflict detected. a concurrent UPDATE added data \
to table delta.`file:/data/tables/counted` committed at version 115."""

TABLE_GONE = """pyspark.errors.exceptions.captured.AnalysisException: [DELTA_MISSING_DELTA_TABLE] \
`file:/data/tables/counted` is not a Delta table. SQLSTATE: 42P01"""

PATH_GONE = """pyspark.errors.exceptions.captured.AnalysisException: [PATH_NOT_FOUND] Path does not exist: \
/data/tables/counted. SQLSTATE: 42K03"""

# As Spark's list of conditions has it.
SAME_CHECKPOINT = """[STREAM_FAILED] Query [id = 9e, runId = 21] terminated with exception: \
[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs detected for 12.
Please make sure only one streaming job runs on a specific checkpoint location at a time. SQLSTATE: 40000"""


@pytest.mark.parametrize(
    ("text", "code", "evidence"),
    [
        (NO_WATERMARK, "JOIN_WITHOUT_WATERMARK", "not supported without a watermark in the join keys"),
        (MISSING, "CHECKPOINT_DAMAGED", "3.changelog does not exist"),
        (CORRUPT, "CHECKPOINT_DAMAGED", "java.io.IOException: Stream is corrupted"),
        (CUT, "CHECKPOINT_DAMAGED", "java.io.EOFException: Stream ended prematurely"),
        (EMPTY, "CHECKPOINT_DAMAGED", "java.io.EOFException"),
        (OFFSETS, "CHECKPOINT_DAMAGED", "offsets/2. Incomplete log file"),
        (OFFSETS.replace("offsets/2", "sources/0/2"), "CHECKPOINT_DAMAGED", "sources/0/2. Incomplete log file"),
        (VALUE_SCHEMA, "STATE_SCHEMA_CHANGED", "[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE]"),
        (OPERATORS, "STATE_SCHEMA_CHANGED", "operator in state metadata"),
        (COLUMNS, "SOURCE_SCHEMA_CHANGED", "in version 3"),
        (CHANGED, "SOURCE_ROWS_CHANGED", "at version 4"),
        (OTHER_TABLE, "SOURCE_REPLACED", "unexpected Delta table"),
        (OTHER_KIND, "SOURCE_REPLACED", "No usable value for logOffset"),
        (LOG_GONE, "SOURCE_DATA_GONE", "lagging behind"),
        (TOPIC, "SOURCE_DATA_GONE", "Could not read records in offset [400, 600) for topic partition trips-0"),
        (NO_SCHEMA, "SOURCE_SCHEMA_UNKNOWN", "has no schema of id 2: topic sales, partition 0, offset 6"),
        (DATA_GONE, "SOURCE_DATA_GONE", "part-00000-1a3e"),
        (DATA_GONE.replace("facts", "counted"), "OUTPUT_DATA_GONE", "tables/counted/part-00000-1a3e"),
        (TABLE_GONE, "OUTPUT_GONE", "tables/counted` is not a Delta table."),
        (PATH_GONE, "OUTPUT_GONE", "Path does not exist: /data/tables/counted"),
        (HEAP, "OUT_OF_MEMORY", "java.lang.OutOfMemoryError: Java heap space"),
        (WORKER, "PYTHON_WORKER_DIED", "Python worker exited unexpectedly (crashed)"),
        ("OSError: [Errno 28] No space left on device: 'x'", "DISK_FULL", "No space left on device"),
        (FORBIDDEN, "S3_REFUSED", "Forbidden (Service: S3, Status Code: 403"),
        (SIGNATURE, "S3_REFUSED", "signature we calculated does not match"),
        (MISSING + FORBIDDEN, "S3_REFUSED", "Forbidden"),
        (AWAY, "S3_UNREACHABLE", "Connect to 127.0.0.1:44091"),
        (MISSING + AWAY, "S3_UNREACHABLE", "Connect to 127.0.0.1:44091"),
        (THROTTLED, "S3_THROTTLED", "Status Code: 503"),
        (BROKEN, "S3_UNREACHABLE", "Status Code: 500"),
        (CONCURRENT, "CONCURRENT_WRITER", "a concurrent UPDATE added data"),
        (SAME_CHECKPOINT, "CONCURRENT_WRITER", "Multiple streaming jobs detected for 12"),
    ],
)
def test_a_known_failure_is_named_with_the_line_that_says_so(text: str, code: str, evidence: str) -> None:
    found = recognise(text, PLACES)
    assert found is not None and found.code == code
    assert evidence in found.evidence and "\n" not in found.evidence
    assert not found.evidence.startswith((":", "Caused by"))
    assert "set the option" not in found.evidence, "no job's YAML has it"


@pytest.mark.parametrize(
    "text",
    [
        "",
        STORE_AWAY,
        DATA_GONE.replace("facts", "facts_of_others"),
        "java.lang.OutOfMemoryError: unable to create native thread: possibly out of memory or process limits reached",
        "java.lang.IllegalStateException: something new",
    ],
)
def test_what_is_not_known_is_not_guessed_at(text: str) -> None:
    assert recognise(text, PLACES) is None


def test_the_last_words_of_a_jvm_that_ran_out_of_heap(tmp_path: Path) -> None:
    (tmp_path / "driver.log").write_text("2026-11-21T10:00:00 ERROR job i1 try 1 failed: ConnectionRefusedError: no\n")
    (tmp_path / "console.log").write_text("Terminating due to java.lang.OutOfMemoryError: Java heap space\n")
    words = last_words(tmp_path)
    assert (words.code, words.file) == ("OUT_OF_MEMORY", "console.log")
    assert words.evidence == "Terminating due to java.lang.OutOfMemoryError: Java heap space"


def test_the_last_words_of_a_jvm_that_crashed(tmp_path: Path) -> None:
    (tmp_path / "hs_err_7.log").write_text(
        "#\n# A fatal error has been detected by the Java Runtime Environment:\n#\n#  SIGSEGV (0xb) at pc=0x00007f\n"
    )
    words = last_words(tmp_path)
    assert (words.code, words.file) == ("JVM_CRASHED", "hs_err_7.log")


def test_without_last_words_there_is_the_last_error(tmp_path: Path) -> None:
    assert last_words(tmp_path / "none") == LastWords()
    old = "java.lang.OutOfMemoryError: Java heap space\n" + "nothing of note\n" * 20_000
    (tmp_path / "spark.log").write_text(old)
    assert last_words(tmp_path) == LastWords(), "what is far from the end is not what it died of"
    lines = ["Z INFO job i1 running", "Z ERROR job i1 try 1 failed: ValueError: no such zone", "Z INFO job i1 running"]
    (tmp_path / "driver.log").write_text("\n".join(lines))
    assert last_words(tmp_path) == LastWords(None, lines[1], "driver.log")


def test_the_last_words_of_a_driver_whose_store_refuses_them(tmp_path: Path) -> None:
    (tmp_path / "driver.log").write_text(
        "INFO batch 3\nERROR its end could not be written down: [S3_REFUSED] S3 refused a request: write s3://a/exit.json\n"
    )
    words = last_words(tmp_path)
    assert (words.code, words.file) == ("S3_REFUSED", "driver.log") and "s3://a/exit.json" in words.evidence
