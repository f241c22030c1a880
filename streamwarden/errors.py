"""The one catalogue of errors: a stable code, what happened, what to do.

The command line, the logs, the Airflow UI and ``docs/errors.md`` show the same words, because all of them come from
here. Raise :class:`StreamwardenError` with a code of the catalogue; free text goes into ``what``.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal, TypeGuard

from streamwarden.redaction import redacted

__all__ = [
    "CATALOGUE",
    "OUTAGES",
    "ErrorCode",
    "ErrorKind",
    "StreamwardenError",
    "is_code",
    "of_file_system",
    "require_extra",
]


@dataclass(frozen=True)
class ErrorKind:
    """One entry of the catalogue.

    Parameters
    ----------
    summary
        What went wrong, in half a sentence.
    remedy
        What a person does about it.
    retryable
        Whether starting again, with nothing changed, can succeed. A supervisor does not spend its failure budget on
        errors that cannot go away by themselves.
    """

    summary: str
    remedy: str
    retryable: bool = False


ErrorCode = Literal[
    "CONFIG_NOT_FOUND",
    "CONFIG_INVALID",
    "RUN_CONF_UNKNOWN",
    "JOB_UNKNOWN",
    "NAME_INVALID",
    "JOB_MODULE_INVALID",
    "JOIN_WITHOUT_WATERMARK",
    "JOIN_WITHOUT_TIME_RANGE",
    "EXTRA_MISSING",
    "JAVA_MISSING",
    "SPARK_MISSING",
    "JAR_MISSING",
    "JAR_HASH_MISMATCH",
    "JAR_DOWNLOAD_FAILED",
    "DOCUMENT_CONFLICT",
    "DOCUMENT_INVALID",
    "REPAIR_IMPOSSIBLE",
    "LEASE_HELD",
    "LEASE_LOST",
    "DRIVER_DID_NOT_START",
    "DRIVER_DIED",
    "DRIVER_SILENT",
    "DRIVER_STUCK",
    "DRIVER_KILLED",
    "HOST_NAME_TAKEN",
    "SUBMISSION_REFUSED",
    "YARN_UNREACHABLE",
    "KUBERNETES_UNREACHABLE",
    "LOG_NOT_FOUND",
    "NOT_DEPLOYED",
    "STOP_TIMED_OUT",
    "STOP_INCOMPLETE",
    "STATE_LIMIT_REACHED",
    "ALERTS_INVALID",
    "JOB_UNWATCHED",
    "RESTART_BUDGET_SPENT",
    "PROGRESS_TABLE_MISSING",
    "PROGRESS_TABLE_FAILED",
    "QUALITY_TABLE_FAILED",
    "S3_REFUSED",
    "S3_CREDENTIALS_MISSING",
    "S3_BUCKET_MISSING",
    "S3_UNREACHABLE",
    "S3_THROTTLED",
    "S3_OBJECT_DAMAGED",
    "AIRFLOW_PORT_TAKEN",
    "AIRFLOW_DID_NOT_START",
    "POSTGRES_MISSING",
    "POSTGRES_DID_NOT_START",
    "AIRFLOW_REQUEST_FAILED",
    "DEMO_FAILED",
    "SOURCE_INVALID",
    "BATCH_FAILED",
    "DRIVER_FAILED",
    "DISK_FULL",
    "ACCESS_REFUSED",
    "STATE_SCHEMA_CHANGED",
    "SOURCE_SCHEMA_CHANGED",
    "SOURCE_ROWS_CHANGED",
    "SOURCE_REPLACED",
    "SOURCE_DATA_GONE",
    "SOURCE_BEHIND",
    "SOURCE_SCHEMA_UNKNOWN",
    "SCHEMA_REGISTRY_UNREACHABLE",
    "HISTORY_INVALID",
    "OUTPUT_GONE",
    "OUTPUT_BEHIND",
    "OUTPUT_DATA_GONE",
    "TABLE_DAMAGED",
    "OUT_OF_MEMORY",
    "JVM_DIED",
    "JVM_CRASHED",
    "SPARK_CONTEXT_LOST",
    "PYTHON_WORKER_DIED",
    "CONCURRENT_WRITER",
    "JOB_CODE_FAILED",
    "STOP_UNCLEAN",
    "STATE_PARTITIONS_FIXED",
    "STATE_BACKEND_FIXED",
    "STATE_VERSION_FIXED",
    "WATERMARK_POLICY_FIXED",
    "SINK_SCHEMA_MISMATCH",
    "SINK_KEY_TWICE",
    "STATE_UNREADABLE",
    "SERVING_UNREACHABLE",
    "SERVING_NEWER",
    "SERVING_NONE",
    "SAVEPOINT_NOTHING",
    "SAVEPOINT_OUTRUN",
    "SAVEPOINT_FAILED",
    "SAVEPOINT_UNSUPPORTED",
    "SAVEPOINT_NOT_FOUND",
    "SAVEPOINT_DAMAGED",
    "SAVEPOINT_IN_USE",
    "SAVEPOINT_LABEL_INVALID",
    "SAVEPOINT_VERIFY_FAILED",
    "CHECKPOINT_DAMAGED",
    "CHECKPOINT_BEHIND",
    "CHECKPOINT_NEWER_SPARK",
    "OPERATION_RUNNING",
    "OPERATION_UNFINISHED",
    "OPERATION_ABANDONED",
    "OPERATION_FAILED",
    "OPERATION_INTERRUPTED",
    "MIGRATION_FAILED",
    "RESTORE_JOB_VERSION",
    "RESTORE_OPERATORS",
    "RESTORE_STATE_SCHEMA",
    "RESTORE_PARTITIONS",
    "RESTORE_BACKEND",
    "RESTORE_BUCKETS",
    "RESTORE_WATERMARK_POLICY",
    "RESTORE_SPARK_VERSION",
    "RESTORE_SOURCE_CHANGED",
    "RESTORE_SOURCE_GONE",
    "RESTORE_OUTPUT_GONE",
    "RESTORE_OUTPUT_TAKEN",
    "RESTORE_BREAKS_READERS",
    "RESTORE_UNHEALTHY",
    "ROLLOUT_REFUSED",
    "ROLLOUT_UNHEALTHY",
    "RESCALE_NOTHING",
    "RESCALE_NOT_AS_APPROVED",
    "RESCALE_INVALID",
    "RESCALE_UNSUPPORTED",
    "RESCALE_NOT_HEALTHY",
    "RESCALE_NO_SPACE",
    "RESCALE_STATE_DIFFERS",
    "RESCALE_FAILED",
    "RESCALE_REHEARSAL_FAILED",
    "RESCALE_UNHEALTHY",
    "RESCALE_SLOW",
    "OPERATION_CANCELLED",
    "OPERATION_TOO_LATE",
    "OPERATION_NONE",
    "LANDING_NONE",
    "LANDING_UNREADABLE",
    "LANDING_FILE_UNKNOWN",
    "LANDING_WOULD_DOUBLE",
    "REPLAY_SOURCE_INVALID",
    "REPLAY_CONFLICT",
    "REPLAY_RUNNING",
    "REPLAY_OPTIONS_INVALID",
    "SUITE_INVALID",
    "TABLE_NOT_FOUND",
    "EXPECTATIONS_FAILED",
    "QUARANTINE_UNKNOWN",
    "QUARANTINE_ROWS_INVALID",
    "QUARANTINE_REPLAYED",
    "QUARANTINE_NOT_REPLAYABLE",
    "QUARANTINE_EDITS_FAILED",
    "GATE_HELD",
    "GATE_LOG_GONE",
    "GATE_NOTHING_HELD",
    "PUBLISHED_FILES_GONE",
    "CORRECTIONS_UNAVAILABLE",
    "RECONCILE_FAILED",
    "PUBLISHED_LOG_DAMAGED",
    "PUBLISHED_TABLE_REPLACED",
]
"""The codes of the catalogue, as a type: a misspelt code is found by mypy."""

OUTAGES: frozenset[ErrorCode] = frozenset({"S3_UNREACHABLE", "S3_THROTTLED"})
"""A store that does not answer for a while; no fault of the job."""

CATALOGUE: dict[ErrorCode, ErrorKind] = {
    # Configuration
    "CONFIG_NOT_FOUND": ErrorKind(
        "a configuration file does not exist",
        "Create it, or point STREAMWARDEN_CONFIG at the folder that holds jobs/ and profiles/.",
    ),
    "CONFIG_INVALID": ErrorKind(
        "a configuration file is not valid",
        "Correct the named field in the named file; docs/configuration.md lists every field with its default.",
    ),
    "RUN_CONF_UNKNOWN": ErrorKind(
        "a DAG run was triggered with a parameter that its DAG does not have",
        "Nothing was done. Trigger the DAG again with the known parameters only; its form describes each of them.",
    ),
    "JOB_UNKNOWN": ErrorKind(
        "no job of this name is configured",
        "See config/jobs/ for the names, or add config/jobs/NAME.yaml.",
    ),
    "NAME_INVALID": ErrorKind(
        "a text cannot name a job, a table, a run or a document, and would be a part of a path",
        "Use letters, digits, `_`, `-` and `.`, at most 128, and begin with a letter, a digit or `_`. Lists of names:"
        " `streamwarden status`, `streamwarden savepoints list`, `streamwarden gate status`.",
    ),
    "JOB_MODULE_INVALID": ErrorKind(
        "the job's module cannot be used",
        "The module needs VERSION, OUTPUTS and transform() as in docs/jobs.md; correct it, or `module` in the YAML.",
    ),
    "JOIN_WITHOUT_WATERMARK": ErrorKind(
        "an outer join of streams has no watermark by which its rows could end",
        "Call withWatermark on both sources before the join, and name both columns in SOURCES of the module. Set"
        " `watermark` in the job's YAML. docs/jobs.md has an example.",
    ),
    "JOIN_WITHOUT_TIME_RANGE": ErrorKind(
        "the condition of an outer join of streams has no range of time, so its rows could not end",
        "Add a range between the columns of both withWatermark calls to the condition, such as `paid_at >= ordered_at"
        " AND paid_at <= ordered_at + INTERVAL 1 HOUR`. A column that was computed anew has no watermark: call"
        " withWatermark after it.",
    ),
    # Set-up
    "EXTRA_MISSING": ErrorKind(
        "a package of an optional part is not installed",
        'Install the named extra, such as `pip install "streamwarden[s3]"`, or all of them: `make setup`.',
    ),
    "JAVA_MISSING": ErrorKind(
        "no Java 17 was found",
        "Install a Java 17 runtime and put `java` on PATH or set JAVA_HOME.",
    ),
    "SPARK_MISSING": ErrorKind(
        "PySpark is not installed where a job's Spark version is compared",
        "Install `streamwarden` with its pinned pyspark here, too; Spark itself is not started here.",
    ),
    "JAR_MISSING": ErrorKind(
        "a pinned JVM jar is not in the jar folder",
        "Run `make setup`; set STREAMWARDEN_JARS if the jars are in another folder.",
    ),
    "JAR_HASH_MISMATCH": ErrorKind(
        "a JVM jar does not have the pinned SHA-256",
        "Delete the file and run `make setup` again. If it repeats, do not trust the repository that served it.",
    ),
    "JAR_DOWNLOAD_FAILED": ErrorKind(
        "a pinned JVM jar could not be downloaded",
        "Check the network; to use a mirror, set STREAMWARDEN_MAVEN_REPO to its root. Then run `make setup` again.",
        retryable=True,
    ),
    # Control
    "DOCUMENT_CONFLICT": ErrorKind(
        "a control document was changed by somebody else at the same time",
        "Repeat the command. If it fails again, two people or programs are changing the same job.",
        retryable=True,
    ),
    "DOCUMENT_INVALID": ErrorKind(
        "a control document cannot be read",
        "It is empty or truncated, as after a full disk or a power loss, or was written by another version or by"
        " hand. A job's document: `streamwarden repair JOB`. The gate's document of a table: `streamwarden gate repair"
        " TABLE`. Any other: restore it from a backup.",
    ),
    "REPAIR_IMPOSSIBLE": ErrorKind(
        "a damaged control document can't be rebuilt from the other data of the job",
        "Restore it from a backup of the disk or bucket, then start the job. A guess could lose rows or write them"
        " twice. Or restore a savepoint: `streamwarden doctor JOB` names the newest whole one.",
    ),
    "LEASE_HELD": ErrorKind(
        "another driver runs this job",
        "Only one driver may run a job. Stop the other one first (`streamwarden stop JOB`), or let it run.",
    ),
    "LEASE_LOST": ErrorKind(
        "this driver lost the job's lease",
        "Another driver took over, or this one was paused for longer than the lease lasts. It wrote nothing after"
        " that.",
        retryable=True,
    ),
    "DRIVER_DID_NOT_START": ErrorKind(
        "the driver process ended before it ran, or did not run in time",
        "Read its log: `streamwarden logs JOB`. If no driver host has taken it, start one: `streamwarden host`.",
        retryable=True,
    ),
    "DRIVER_DIED": ErrorKind(
        "the driver process ended without reporting an error",
        "It was killed (kill -9, out of memory) or crashed; `streamwarden logs JOB` shows the end of its log.",
        retryable=True,
    ),
    "DRIVER_SILENT": ErrorKind(
        "the driver sends no heartbeat",
        "It hangs, is paused, or cannot reach the control documents; `streamwarden logs JOB` shows the end of its log.",
        retryable=True,
    ),
    "DRIVER_STUCK": ErrorKind(
        "the driver was alive but committed no batch, and was stopped",
        "Find what it waited for: `streamwarden logs JOB --source spark`. If a task hung or a store did not answer,"
        " correct that. If batches really take that long, raise trigger.timeout, or make them smaller"
        " (source.max_files_per_batch; for Kafka source.max_offsets_per_batch).",
        retryable=True,
    ),
    "DRIVER_KILLED": ErrorKind(
        "the driver did not stop, and an operator killed it",
        "Nothing is lost: the next start finishes the batch that was in flight (`streamwarden deploy JOB`). To find"
        " why it hung: `streamwarden logs JOB --source spark`.",
        retryable=True,
    ),
    "HOST_NAME_TAKEN": ErrorKind(
        "a driver host with this name is running",
        "Stop it, or start this one with another --name. After a host was killed on another machine, its name is free"
        " again in 15 seconds.",
    ),
    "SUBMISSION_REFUSED": ErrorKind(
        "the cluster did not accept the driver",
        "The message has the cluster's own words; submission.log beside the driver's logs, on the machine that"
        " submitted, has the rest. Correct the profile or the job's resources, and deploy again.",
        retryable=True,
    ),
    "YARN_UNREACHABLE": ErrorKind(
        "no ResourceManager of YARN answers",
        "Check that it runs, and `yarn.resource_managers` of the profile. Drivers that run go on meanwhile.",
        retryable=True,
    ),
    "KUBERNETES_UNREACHABLE": ErrorKind(
        "the API server of Kubernetes does not answer",
        "Check that it runs, and `master` of the profile. Drivers that run go on meanwhile.",
        retryable=True,
    ),
    "LOG_NOT_FOUND": ErrorKind(
        "the log file does not exist",
        "Use --source driver, spark or console, and an incarnation that `streamwarden status JOB --json` shows.",
    ),
    "NOT_DEPLOYED": ErrorKind(
        "the job was never deployed here",
        "Deploy it: `streamwarden deploy JOB`, or trigger its DAG.",
    ),
    "STOP_TIMED_OUT": ErrorKind(
        "the driver did not stop in time",
        "The batch in flight may be long: see `streamwarden status JOB`, then repeat with a larger --timeout. If the"
        " driver hangs: `streamwarden stop JOB --kill`; the next start finishes the batch.",
        retryable=True,
    ),
    "STOP_INCOMPLETE": ErrorKind(
        "some jobs were not stopped",
        "Each job above was not stopped, for the reason after its name; all others were. Wait for an operation to end"
        " (`streamwarden operations JOB`), or cancel a rescale, then stop these jobs again. If a driver hangs:"
        " `streamwarden stop JOB --kill`.",
        retryable=True,
    ),
    "STATE_LIMIT_REACHED": ErrorKind(
        "the job's state has reached the number of keys that its spec allows",
        "Find why there are so many keys (one that never repeats, or a TTL or watermark that never removes any)."
        " Correct the job or raise health.state_rows.critical, then deploy it again: it continues where it stopped.",
    ),
    "ALERTS_INVALID": ErrorKind(
        "a notifier of config/alerts.yaml cannot be used",
        "Correct its class or arguments; the class must be an Airflow notifier that the worker can import.",
    ),
    "JOB_UNWATCHED": ErrorKind(
        "a job that should run is not supervised: if its driver dies, it stays down",
        "Unpause its DAG job_JOB, or trigger it: the DAG then supervises the driver that runs. To end"
        " the alarm without supervision, stop the job (`streamwarden stop JOB`) or pause the DAG `watch`. A job whose"
        " YAML was deleted has no DAG: put the file back, or stop the job; to rename one: docs/renaming.md.",
    ),
    "RESTART_BUDGET_SPENT": ErrorKind(
        "the job failed more often than its restart budget allows",
        "Read the last error, correct its cause, then deploy the job again.",
    ),
    # Observability
    "PROGRESS_TABLE_MISSING": ErrorKind(
        "the table job_progress does not exist",
        "A driver creates it with its first batches; check that the profile enables `progress_table`.",
    ),
    "PROGRESS_TABLE_FAILED": ErrorKind(
        "the table job_progress could not be read or maintained",
        "The store's error is above; repeat the command once the store works. Batches don't depend on this table.",
        retryable=True,
    ),
    "QUALITY_TABLE_FAILED": ErrorKind(
        "the table quality_results could not be read or written",
        "The store's error is above; repeat the command once the store works. Decisions do not depend on this table.",
        retryable=True,
    ),
    # S3
    "S3_REFUSED": ErrorKind(
        "S3 refused a request",
        "The server's message is above. If the key or signature is wrong: correct AWS_ACCESS_KEY_ID,"
        " AWS_SECRET_ACCESS_KEY, or the clock. If access is denied: give that user the rights that docs/deployment.md"
        " lists under On S3.",
    ),
    "S3_CREDENTIALS_MISSING": ErrorKind(
        "there are no credentials for S3",
        "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for this process, or give its machine a role. A driver"
        " inherits the environment of the process that started it.",
    ),
    "S3_BUCKET_MISSING": ErrorKind(
        "the bucket does not exist",
        "Create it, or correct `bucket` and `endpoint` of the profile's `s3`. Streamwarden creates no buckets.",
    ),
    "S3_UNREACHABLE": ErrorKind(
        "S3 does not answer",
        "Check the server, the network, and `endpoint` of the profile's `s3`. The request may or may not have been"
        " carried out; it can be repeated.",
        retryable=True,
    ),
    "S3_THROTTLED": ErrorKind(
        "S3 throttles requests",
        "It usually ends by itself. If it lasts: run fewer jobs under one prefix, or use longer trigger intervals and"
        " heartbeats.",
        retryable=True,
    ),
    "S3_OBJECT_DAMAGED": ErrorKind(
        "an object's bytes do not match its checksum",
        "Read it again; if it repeats, the stored object is damaged. Restore a version that the bucket keeps, or"
        " restore the job from a savepoint.",
    ),
    # Airflow on one machine
    "AIRFLOW_PORT_TAKEN": ErrorKind(
        "Airflow's port is in use",
        "Stop the program that listens there (an Airflow of another folder?), or choose another port.",
    ),
    "AIRFLOW_DID_NOT_START": ErrorKind(
        "Airflow did not start",
        "Its components' logs are in logs/ of its home; a component that ended gives the reason in its own log.",
        retryable=True,
    ),
    "POSTGRES_MISSING": ErrorKind(
        "no PostgreSQL server is installed",
        "Install one (Debian: `apt-get install postgresql`), or put its `initdb` and `postgres` on PATH.",
    ),
    "POSTGRES_DID_NOT_START": ErrorKind(
        "the private Postgres did not start",
        "Its output is above. If root starts it, it runs as user `postgres`, who must be able to reach its folder.",
        retryable=True,
    ),
    "AIRFLOW_REQUEST_FAILED": ErrorKind(
        "Airflow refused a request, or an expected result did not come",
        "The server's answer is above; the task's log has more.",
        retryable=True,
    ),
    "DEMO_FAILED": ErrorKind(
        "the demo failed",
        "Read the logs that it names. If a step took too long, run it again on a machine with less load.",
        retryable=True,
    ),
    # Driver
    "SOURCE_INVALID": ErrorKind(
        "the job's source cannot be read",
        "Check `source` in the job's YAML, and that the table is a Delta table with the expected columns.",
    ),
    "BATCH_FAILED": ErrorKind(
        "a batch failed more often than failures.tolerable_consecutive allows",
        "The error of the last try is below; correct its cause. The whole batch is then tried again, and no row is"
        " written twice.",
        retryable=True,
    ),
    "DRIVER_FAILED": ErrorKind(
        "the driver failed outside of a batch",
        "Its log has the whole traceback: `streamwarden logs JOB`.",
        retryable=True,
    ),
    "DISK_FULL": ErrorKind(
        "a disk is full",
        "Free space where the root, or the scratch folder, lies. A supervised job then starts by itself; otherwise"
        " deploy it. No row is lost: the batch in flight is tried again.",
        retryable=True,
    ),
    "ACCESS_REFUSED": ErrorKind(
        "the system refused access to a file or folder",
        "Give the user of this command the right to it. The profile's root is written by commands, drivers and Airflow,"
        " each on its own machine. `--root`, or STREAMWARDEN_ROOT, names another one.",
    ),
    "STATE_SCHEMA_CHANGED": ErrorKind(
        "the query's state differs from the checkpoint's",
        "Bring back the query as it was, or restore a savepoint of the query as it is. A query with other state is"
        " another job: give it its own name and tables.",
    ),
    "SOURCE_SCHEMA_CHANGED": ErrorKind(
        "the source table's columns changed in a way that its stream can't follow",
        "Bring the columns back. If the new ones are to stay, they can't be used to read the old rows: have the"
        " writer create a new table, and let the job read that one. A column that was only added needs no action.",
    ),
    "SOURCE_ROWS_CHANGED": ErrorKind(
        "rows of the source table were updated, deleted or overwritten",
        "A stream can't retract rows. To skip that commit, set source.on_change: skip in the job's YAML and deploy:"
        " commits that change or delete rows are then skipped whole, with any rows that they added. Rows that the job"
        " has read before stay in its outputs. To get outputs of the table as it is now, deploy the job under another"
        " name: it starts with the whole table. Restoring an earlier version of the table is another such commit, and"
        " no savepoint helps.",
    ),
    "SOURCE_REPLACED": ErrorKind(
        "the source is not the one that the checkpoint was reading",
        "Its table or topic was created anew, or `source` points elsewhere: bring the old one back. Offsets of one"
        " source mean nothing in another.",
    ),
    "SOURCE_DATA_GONE": ErrorKind(
        "the source no longer has data that the job has not read yet",
        "Put the files back as they were (`cp -p`), and deploy again. They were removed by hand, by VACUUM, or by the"
        " table's log retention: make both retentions longer than the job may ever lag behind. If a table's files are"
        " lost, a job of another name starts with the table as it is. If a landed file is lost, put an empty file of"
        " that name in its place: the job quarantines it by its name. Records that Kafka dropped are lost to the job:"
        " make the topic's retention longer, too.",
    ),
    "SOURCE_BEHIND": ErrorKind(
        "a source table has fewer versions than the checkpoint has read; the job would skip the next ones",
        "The table is an older copy, as from a backup. `streamwarden doctor JOB` names the newest savepoint that fits"
        " it, and the command that restores it. Do this before the table gets new versions. Or bring back the newer"
        " table.",
    ),
    "SOURCE_SCHEMA_UNKNOWN": ErrorKind(
        "a record of Kafka names a schema that the registry's subject does not have",
        "The next try reads the registry again, so a new version of the subject needs no action. If the error stays,"
        " then the record's writer uses another subject or registry: set `subject` or `registry` of the source's"
        " `value`. To keep such values aside, in `_corrupt`, set `unknown_schema: corrupt` and deploy.",
        retryable=True,
    ),
    "SCHEMA_REGISTRY_UNREACHABLE": ErrorKind(
        "the schema registry does not answer, or refuses the request",
        "Check `registry` of the source's `value`, and the login in STREAMWARDEN_SCHEMA_REGISTRY_URL. Running batches"
        " do not need the registry; a start does.",
        retryable=True,
    ),
    "HISTORY_INVALID": ErrorKind(
        "the job can't begin with the history of its source",
        "Give the history table the columns of the live source, or name another table in `source.history`. Then deploy"
        " the job again: docs/history.md.",
    ),
    "OUTPUT_GONE": ErrorKind(
        "an output table that the job has written to is gone",
        "Bring its folder back from a copy, then deploy. Or continue with an empty table: `streamwarden savepoint JOB`,"
        " then `streamwarden restore JOB --outputs leave`. It gets the rows after the savepoint, and no earlier ones.",
    ),
    "OUTPUT_BEHIND": ErrorKind(
        "an output table lacks batches that the checkpoint counts as written",
        "The table is an older copy, as from a backup. `streamwarden doctor JOB` names the newest savepoint that the"
        " table still has, and the command that restores it. Or bring back the newer table.",
    ),
    "OUTPUT_DATA_GONE": ErrorKind(
        "a file of an output table is missing",
        "Put it back, or restore a savepoint whose table version does not need it.",
    ),
    "TABLE_DAMAGED": ErrorKind(
        "an entry of a Delta table's log, or a file that it names, is empty, truncated or missing",
        "Restore it from a backup of the disk or bucket, or restore a savepoint of before it: the restore rolls the"
        " log back to that version. Without either, deploy the job under another name with its own tables: it starts"
        " from scratch.",
    ),
    "OUT_OF_MEMORY": ErrorKind(
        "the JVM ran out of heap",
        "Raise resources.memory of the job, or make its batches smaller (source.max_files_per_batch; for Kafka"
        " source.max_offsets_per_batch).",
        retryable=True,
    ),
    "JVM_DIED": ErrorKind(
        "the driver's JVM ended without reporting an error",
        "It was killed from outside: by a person, or by a kernel that is short of memory. See the kernel's log.",
        retryable=True,
    ),
    "JVM_CRASHED": ErrorKind(
        "the driver's JVM crashed",
        "The hs_err file beside the driver's logs names the code in which it happened. If it repeats, report it to"
        " that code's project.",
        retryable=True,
    ),
    "SPARK_CONTEXT_LOST": ErrorKind(
        "the driver's SparkContext was stopped under it",
        "The cluster has removed the application: a standalone master does so after its executors failed again and"
        " again, or when somebody kills it. The supervisor starts another driver. If it repeats, read the master's"
        " log.",
        retryable=True,
    ),
    "PYTHON_WORKER_DIED": ErrorKind(
        "a Python worker of Spark ended without reporting an error",
        "It crashed in native code, or a kernel that is short of memory killed it: see the kernel's log. The workers'"
        " memory is not part of resources.memory.",
        retryable=True,
    ),
    "CONCURRENT_WRITER": ErrorKind(
        "another process writes to an output table, or to the job's checkpoint, at the same time",
        "A table has one writer: find the other one in the table's history (DESCRIBE HISTORY), and stop it. A"
        " checkpoint has one query: find the other one, which was started on it by hand.",
        retryable=True,
    ),
    "JOB_CODE_FAILED": ErrorKind(
        "the job's own Python code raised an exception",
        "Its traceback is below: correct the code, or the data that it can't process, then deploy the job again. The"
        " whole batch is then tried again, and no row is written twice.",
        retryable=True,
    ),
    "STOP_UNCLEAN": ErrorKind(
        "the query ended with a batch begun and not committed",
        "The next start finishes that batch; nothing is lost. If it repeats, report it with the driver's log.",
        retryable=True,
    ),
    "STATE_PARTITIONS_FIXED": ErrorKind(
        "the checkpoint was made with another number of state partitions",
        "A checkpoint keeps its number of partitions. Set state.partitions back; to change it, rescale the job"
        " (`streamwarden rescale JOB`).",
    ),
    "STATE_BACKEND_FIXED": ErrorKind(
        "the checkpoint was made with another state backend",
        "Set state.backend back: state of one backend cannot be read by the other.",
    ),
    "STATE_VERSION_FIXED": ErrorKind(
        "the checkpoint has state of another version of the job's module",
        "Bring back the module of that version and deploy. Or, if the new one migrates that state: `streamwarden stop"
        " JOB`, `streamwarden savepoint JOB`, `streamwarden restore JOB --savepoint ID`.",
    ),
    "WATERMARK_POLICY_FIXED": ErrorKind(
        "the checkpoint has another policy for the watermark of several sources",
        "Set watermark_policy back: Spark keeps the first one with the checkpoint. A job of another name starts with"
        " the new one.",
    ),
    "SINK_SCHEMA_MISMATCH": ErrorKind(
        "an output table has columns that the job can't write",
        "Each column is listed with its remedy. A table may have columns that the job does not write, if they accept"
        " nulls, and a new column of the job is added. Any other difference is refused.",
    ),
    "SINK_KEY_TWICE": ErrorKind(
        "a batch has several rows for one key of an upserted table",
        "If the rows are versions of one row, keep one for each key in the job's outputs(), or group by the sink's"
        " `keys` in its transform(). If they are different rows, add the column that distinguishes them to `keys`."
        " Then deploy the job: the whole batch is tried again.",
    ),
    # Savepoints
    "SERVING_UNREACHABLE": ErrorKind(
        "the serving store does not answer",
        "Start the server, or correct `serve` of the sink or STREAMWARDEN_REDIS_URL. The batch is tried again: nothing"
        " is lost.",
        retryable=True,
    ),
    "SERVING_NONE": ErrorKind(
        "there is no serving store of that table",
        "Give its sink `serve` in the job's YAML, and deploy the job: its driver makes the store.",
    ),
    "SERVING_NEWER": ErrorKind(
        "the serving store was written by a later driver",
        "A later driver runs the job, or the store belongs to another root, or to this job before its root was made"
        " anew. If nothing else uses it: `streamwarden features clear TABLE --yes`, then deploy; the driver fills it"
        " from the table.",
    ),
    "STATE_UNREADABLE": ErrorKind(
        "the state cannot be shown",
        "Name a batch that is still kept, or a verified savepoint: `streamwarden savepoints list` shows them. Keyed"
        " state is read with the job's module: it must be the one that wrote it, and its sources must be there.",
    ),
    "SAVEPOINT_NOTHING": ErrorKind(
        "the job has nothing to take a savepoint of",
        "Deploy it and wait for its first committed batch.",
    ),
    "SAVEPOINT_OUTRUN": ErrorKind(
        "Spark removed old state files faster than they were copied",
        "Raise state.min_batches_to_retain or trigger.interval of the job, or stop it for the savepoint (--stop).",
        retryable=True,
    ),
    "SAVEPOINT_FAILED": ErrorKind(
        "a savepoint could not be taken",
        "Correct the cause and take it again. Nothing is left of the failed savepoint, and the job goes on.",
        retryable=True,
    ),
    "SAVEPOINT_UNSUPPORTED": ErrorKind(
        "a checkpoint or savepoint has an unknown format",
        "For a checkpoint: leave spark.sql.streaming.stateStore.checkpointFormatVersion out of the settings of a new"
        " job. For a savepoint: restore it with the newer Streamwarden that took it.",
    ),
    "SAVEPOINT_NOT_FOUND": ErrorKind(
        "there is no such savepoint",
        "`streamwarden savepoints list JOB` lists the job's savepoints.",
    ),
    "SAVEPOINT_DAMAGED": ErrorKind(
        "a savepoint is damaged",
        "Use another one; `streamwarden savepoints verify JOB ID` names the damaged files. Delete it if you don't"
        " need it.",
    ),
    "SAVEPOINT_IN_USE": ErrorKind(
        "a savepoint is protected from deletion",
        "Remove its label, or wait for the operation that starts from it. The newest verified savepoint is only"
        " deleted with --force.",
    ),
    "SAVEPOINT_LABEL_INVALID": ErrorKind(
        "a savepoint can't have this label",
        "Choose another: not `latest` or `all`, without blanks at its ends, and not the id or label of another"
        " savepoint of the job.",
    ),
    "SAVEPOINT_VERIFY_FAILED": ErrorKind(
        "a savepoint could not be verified",
        "The savepoint itself may be good or damaged. Correct the cause and verify it again.",
        retryable=True,
    ),
    "CHECKPOINT_DAMAGED": ErrorKind(
        "a file that the checkpoint needs is missing or damaged",
        "The job cannot continue from it: restore the newest verified savepoint (`streamwarden restore JOB`).",
    ),
    "CHECKPOINT_BEHIND": ErrorKind(
        "an output table has batches that the checkpoint does not know; Delta would skip the next ones",
        "The checkpoint or the control documents of the job were removed, or are an older copy. To go on, restore a"
        " savepoint: `streamwarden restore JOB`. To begin anew, remove the folders of the job's output tables as well,"
        " then deploy.",
    ),
    "CHECKPOINT_NEWER_SPARK": ErrorKind(
        "a driver with a later version of Spark, or with another major one, has written the checkpoint",
        "Start the job with that version. To go back, restore a savepoint from before the upgrade:"
        " `streamwarden restore JOB --savepoint ID`. See docs/upgrading.md.",
    ),
    # Restore
    "OPERATION_RUNNING": ErrorKind(
        "another operation works on this job",
        "Wait until it has ended; `streamwarden status JOB` shows it.",
        retryable=True,
    ),
    "OPERATION_UNFINISHED": ErrorKind(
        "an interrupted rescale of this job must be resumed first, to be completed or rolled back",
        "Resume it: Airflow retries its task, or clear the task, or run `streamwarden rescale JOB --resume`. Then"
        " repeat your command. If it fails each time: `streamwarden operations abandon JOB`.",
    ),
    "OPERATION_ABANDONED": ErrorKind(
        "an operator has abandoned an unfinished operation",
        "Nothing was rolled back: `streamwarden status JOB` shows what is in force. To roll back, restore the"
        " savepoint that the operation took (`streamwarden savepoints list JOB`).",
    ),
    "OPERATION_FAILED": ErrorKind(
        "an operation failed",
        "The job is as before, or as `streamwarden status JOB` shows. Correct the cause and repeat the operation.",
        retryable=True,
    ),
    "OPERATION_INTERRUPTED": ErrorKind(
        "an operation was taken over or given up before it was complete",
        "`streamwarden status JOB` shows what runs now; repeat the operation if you still want it.",
        retryable=True,
    ),
    "MIGRATION_FAILED": ErrorKind(
        "the state of a job's earlier version could not be migrated",
        "Checkpoint and tables are as before. A job that ran is started again, with the module as it is now. Correct"
        " that and repeat the restore, or bring back the module of the checkpoint's version.",
    ),
    "RESTORE_JOB_VERSION": ErrorKind(
        "the savepoint's state is of another version of the job",
        "Bring back the module of that version, or restore a savepoint that this version took.",
    ),
    "RESTORE_OPERATORS": ErrorKind(
        "the savepoint's stateful operators are not the job's",
        "Bring back the query as it was, or restore a savepoint of the query as it is.",
    ),
    "RESTORE_STATE_SCHEMA": ErrorKind(
        "the savepoint's state schema is not the job's",
        "Bring back the query as it was, or restore a savepoint of the query as it is.",
    ),
    "RESTORE_PARTITIONS": ErrorKind(
        "the savepoint has another number of state partitions than the job's YAML asks for",
        "Set state.partitions to the savepoint's number; to change it later, use `streamwarden rescale JOB"
        " --partitions N`.",
    ),
    "RESTORE_BACKEND": ErrorKind(
        "the savepoint uses another state backend",
        "Set state.backend to the savepoint's: state of one backend cannot be read by the other.",
    ),
    "RESTORE_WATERMARK_POLICY": ErrorKind(
        "the savepoint has another policy for the watermark of several sources",
        "Set watermark_policy to the savepoint's: Spark keeps the first one with the checkpoint.",
    ),
    "RESTORE_BUCKETS": ErrorKind(
        "the keys of the savepoint's state are divided into another number of buckets",
        "Set state.buckets to the savepoint's number: it can't change while the state is kept.",
    ),
    "RESTORE_SPARK_VERSION": ErrorKind(
        "the savepoint was written by a Spark version that this one may not be able to read",
        "Run the Spark version that wrote it, or a later one of the same major version.",
    ),
    "RESTORE_SOURCE_CHANGED": ErrorKind(
        "the job's source is not the one that the savepoint was reading",
        "Set `source` back to what it was; offsets of one source mean nothing in another.",
    ),
    "RESTORE_SOURCE_GONE": ErrorKind(
        "the source no longer has all data that came after the savepoint",
        "Choose a newer savepoint, or bring the data back. Otherwise rows would be lost silently.",
    ),
    "RESTORE_OUTPUT_GONE": ErrorKind(
        "an output table can't be put back to the savepoint's version",
        "That version was vacuumed or removed from the log: choose a newer savepoint, or leave the outputs as they"
        " are (--outputs leave).",
    ),
    "RESTORE_OUTPUT_TAKEN": ErrorKind(
        "a clone's output table exists already, or another job writes it",
        "Give the clone its own tables in its YAML: they are overwritten with copies of the first job's.",
    ),
    "RESTORE_BREAKS_READERS": ErrorKind(
        "another job streams from a table that would be put back",
        "Leave the outputs as they are (--outputs leave) if their rows have keys. Otherwise restore the reading job"
        " too, while it is stopped, from a savepoint of before.",
    ),
    "RESTORE_UNHEALTHY": ErrorKind(
        "the restored job did not become healthy, and was rolled back",
        "Its error is above. The job is back on the checkpoint that it had before, and in the state that it was in. "
        "`streamwarden logs JOB` shows the driver's log.",
    ),
    # Rollout
    "ROLLOUT_REFUSED": ErrorKind(
        "a change of the job's YAML can't be rolled out",
        "Undo the named change, and deploy again; `streamwarden diff JOB` shows each with its reason.",
    ),
    "ROLLOUT_UNHEALTHY": ErrorKind(
        "the job did not become healthy with its changed YAML, and was rolled back",
        "The new driver's error is above, its log in `streamwarden logs JOB --incarnation ID`; `streamwarden"
        " operations JOB` shows the id and the rollback. Correct the job, and deploy again.",
    ),
    # Rescale
    "RESCALE_NOTHING": ErrorKind(
        "the rescale would change nothing",
        "Give a number of partitions or cores, or an amount of memory, that the job does not have already.",
    ),
    "RESCALE_NOT_AS_APPROVED": ErrorKind(
        "the job has changed since its rescale was approved",
        "Trigger the rescale again, and have its new plan approved.",
    ),
    "RESCALE_INVALID": ErrorKind(
        "the target of the rescale is not valid",
        "docs/configuration.md has the field's bounds.",
    ),
    "RESCALE_UNSUPPORTED": ErrorKind(
        "the job's state can't be repartitioned",
        "Its cores and memory can be changed. Another number of partitions needs the rocksdb backend, the Spark"
        " version that wrote the checkpoint, and operators that docs/rescaling.md lists. Otherwise deploy the job"
        " under another name: it starts with a new checkpoint.",
    ),
    "RESCALE_NOT_HEALTHY": ErrorKind(
        "the job is not healthy enough to be rescaled",
        "`streamwarden status JOB` shows what is wrong. Correct that first: a rescale does not, and could not"
        " distinguish old problems from its own.",
    ),
    "RESCALE_NO_SPACE": ErrorKind(
        "there is not enough space for a copy of the checkpoint",
        "Free some, or let housekeeping remove savepoints: `streamwarden savepoints list JOB` shows how much each one"
        " takes by itself.",
    ),
    "RESCALE_STATE_DIFFERS": ErrorKind(
        "the repartitioned state differs from the original",
        "The job runs on as before, from its untouched checkpoint. If a batch was replayed and the job's results"
        " depend on random numbers or the clock, rescale it offline (`--mode offline`). Otherwise report this with the"
        " operation's record: it is a bug in Spark or in Streamwarden.",
    ),
    "RESCALE_FAILED": ErrorKind(
        "Spark could not repartition the state",
        "Spark's error is above; the job runs on as before.",
    ),
    "RESCALE_REHEARSAL_FAILED": ErrorKind(
        "the new driver ended while it rehearsed the job",
        "Its error is above, and the end of its log has more. Nothing was changed, and the job runs on as before. If"
        " it ran out of memory, request more.",
    ),
    "RESCALE_UNHEALTHY": ErrorKind(
        "the rescaled job did not become healthy, and was rolled back",
        "The new driver's error is above; the job runs on as before. `streamwarden operations JOB` shows the steps.",
    ),
    "RESCALE_SLOW": ErrorKind(
        "the rescaled job runs, but did not catch up in time",
        "Give it more time (`--health-timeout`) or more cores; `--on-timeout hold` keeps the rescaled job.",
    ),
    "OPERATION_CANCELLED": ErrorKind(
        "the operation was cancelled",
        "The job runs on as before. Repeat the operation if you want it later.",
    ),
    "OPERATION_TOO_LATE": ErrorKind(
        "the operation can no longer be cancelled",
        "The new driver was started: if it does not become healthy in time, the job is rolled back. To undo a healthy"
        " rescale, rescale again, or restore the pre-rescale savepoint.",
    ),
    "OPERATION_NONE": ErrorKind(
        "the job has no such operation",
        "`streamwarden operations JOB` lists its operations.",
    ),
    # Landed files
    "LANDING_NONE": ErrorKind(
        "the command needs a job that reads landed files",
        "Name one with --job: its YAML has `source: {kind: files}`.",
    ),
    "LANDING_UNREADABLE": ErrorKind(
        "a landing folder can't be read",
        "Check that the folder exists, is mounted, and can be read by the user who runs Streamwarden. Nothing is"
        " lost: files are read once it is back.",
        retryable=True,
    ),
    "LANDING_FILE_UNKNOWN": ErrorKind(
        "a landed file can't be reread",
        "`streamwarden landing list --all` lists the files, by the names to use here.",
    ),
    "LANDING_WOULD_DOUBLE": ErrorKind(
        "rereading a file would count its rows twice",
        "Give the outputs keys, so that rows that are in the table already are dropped. If none of its rows is in a"
        " table any more, pass --double.",
    ),
    # Trips
    "REPLAY_SOURCE_INVALID": ErrorKind(
        "the replay's source cannot be used",
        "Give a TLC trip-record Parquet file (green), or `generator`.",
    ),
    "REPLAY_CONFLICT": ErrorKind(
        "the landing folder holds a replay with other options",
        "Resume with the original options, choose another landing folder, or pass --restart.",
    ),
    "REPLAY_RUNNING": ErrorKind(
        "another replay writes to this landing folder",
        "Stop it first (Ctrl-C, or `kill PID`), or choose another landing folder.",
        retryable=True,
    ),
    "REPLAY_OPTIONS_INVALID": ErrorKind(
        "an option of the replay or the generator cannot be used",
        "Correct the named option; docs/trips.md lists them all.",
    ),
    # Quality
    "SUITE_INVALID": ErrorKind(
        "an expectation suite cannot be used",
        "Correct the named file in expectations/.",
    ),
    "TABLE_NOT_FOUND": ErrorKind(
        "an output table does not exist",
        "Deploy the job that writes it, and wait for its first batch.",
    ),
    "EXPECTATIONS_FAILED": ErrorKind(
        "a table does not meet its expectations",
        "The report lists each failed expectation with failing rows; correct the data or the suite.",
    ),
    # Quarantine
    "QUARANTINE_UNKNOWN": ErrorKind(
        "no job writes such a quarantine table, or it has no batch yet",
        "Name a table that `streamwarden quarantine list` shows.",
    ),
    "QUARANTINE_ROWS_INVALID": ErrorKind(
        "the rows to replay cannot be used",
        "Give lines as `streamwarden quarantine show TABLE` prints them, with `row` corrected.",
    ),
    "QUARANTINE_REPLAYED": ErrorKind(
        "a row was replayed already, and has not failed again",
        "Leave it out. If it fails again, `streamwarden quarantine list` counts it, and it can be replayed anew.",
    ),
    "QUARANTINE_NOT_REPLAYABLE": ErrorKind(
        "a quarantined row cannot go through its job again",
        "Correct the rows in the source that it came from.",
    ),
    "QUARANTINE_EDITS_FAILED": ErrorKind(
        "a replay could not be recorded or sent",
        "Repeat the same command: it continues, and sends nothing twice.",
        retryable=True,
    ),
    # Gate
    "GATE_HELD": ErrorKind(
        "the gate holds a table: its newest versions do not meet the expectations",
        "`streamwarden gate status TABLE` shows the failing rows. Correct them in the table, and run `streamwarden gate"
        " check TABLE`; or publish them as they are: `streamwarden gate accept TABLE --note WHY`; or restore the job"
        " with `--outputs rewind` to a savepoint of before them, and check again. What each does to jobs that read the"
        " table: docs/gate.md.",
    ),
    "GATE_LOG_GONE": ErrorKind(
        "a table's log no longer has a commit that the gate has not published yet",
        "Publish the table as it is now: `streamwarden gate check TABLE --anew` checks all of its rows.",
    ),
    "GATE_NOTHING_HELD": ErrorKind(
        "the gate holds nothing that could be accepted",
        "`streamwarden gate status TABLE` shows what is published.",
    ),
    "PUBLISHED_FILES_GONE": ErrorKind(
        "files of a published version no longer exist: VACUUM removed them, or a person",
        "Readers fail until a later version is published. Correct the held rows, and run `streamwarden gate check"
        " TABLE`; or publish them as they are: `streamwarden gate accept TABLE --note WHY`. If nothing is held, the"
        " table itself is damaged: restore the files from a backup. Before the next VACUUM, see docs/gate.md.",
    ),
    "CORRECTIONS_UNAVAILABLE": ErrorKind(
        "late rows of this job or table cannot be found or folded in",
        "Give the sink `final_when_passed` and `reconcile`: docs/corrections.md.",
    ),
    "RECONCILE_FAILED": ErrorKind(
        "the query of a sink's `reconcile` failed, or does not give the table's rows",
        "Correct the query in the job's YAML: it must give every column of the table, and one row for each key.",
    ),
    "PUBLISHED_LOG_DAMAGED": ErrorKind(
        "an entry of the log of published versions is unreadable, missing, or not the gate's",
        "`streamwarden gate repair TABLE` writes it again from the table's log.",
    ),
    "PUBLISHED_TABLE_REPLACED": ErrorKind(
        "the table was removed and created anew, or replaced by an older copy, since its last published version",
        "`streamwarden gate check TABLE --anew` checks the new table and publishes it in the place of the old one."
        " Streams that read the published table must start again.",
    ),
}


class StreamwardenError(Exception):
    """An error with a stable code and a remedy.

    Parameters
    ----------
    code
        A key of :data:`CATALOGUE`.
    what
        What happened, with the names and values of this case. Secrets of the environment are hidden.
    remedy
        Replaces the catalogue's remedy where this case has a more precise one.
    retryable
        Replaces the catalogue's `retryable`, where this case differs.

    Raises
    ------
    KeyError
        If the code is not in the catalogue: a mistake of the program, found by any test that reaches it.
    """

    def __init__(self, code: ErrorCode, what: str, *, remedy: str | None = None, retryable: bool | None = None) -> None:
        kind = CATALOGUE[code]
        self.code: ErrorCode = code
        self.what = redacted(what)
        self.remedy = remedy or kind.remedy
        self.retryable = kind.retryable if retryable is None else retryable
        super().__init__(code, self.what, self.remedy)

    def __str__(self) -> str:
        return f"[{self.code}] {CATALOGUE[self.code].summary}: {self.what}\n  What to do: {self.remedy}"

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions cross process borders (Airflow pickles them); the default would pass the wrong arguments.
        return (_rebuild, (self.code, self.what, self.remedy, self.retryable))


def is_code(text: str) -> TypeGuard[ErrorCode]:
    """Return whether a text, such as a document's, is a code of this version's catalogue."""
    return text in CATALOGUE


def of_file_system(error: OSError) -> StreamwardenError | None:
    """Return an error of the system with a code, if it is about the place of a file; None for any other."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StreamwardenError("DISK_FULL", str(error))
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) and error.filename is not None:
        return StreamwardenError("ACCESS_REFUSED", str(error))
    return None


def require_extra(extra: str, module: str) -> None:
    """Check that an extra of this package is installed. Does not import it.

    Parameters
    ----------
    extra
        Its name in ``pyproject.toml``.
    module
        A module that only this extra installs.

    Raises
    ------
    StreamwardenError
        ``EXTRA_MISSING``, with the command that installs the extra.
    """
    if find_spec(module) is None:
        raise StreamwardenError(
            "EXTRA_MISSING", f"{module} is not there", remedy=f'Install it: `pip install "streamwarden[{extra}]"`.'
        )


def _rebuild(code: ErrorCode, what: str, remedy: str, retryable: bool | None = None) -> StreamwardenError:
    return StreamwardenError(code, what, remedy=remedy, retryable=retryable)
