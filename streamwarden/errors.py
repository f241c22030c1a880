"""The one catalogue of errors: a stable code, what happened, what to do.

The command line, the logs, the Airflow UI and ``docs/errors.md`` show the same words, because all of them come from
here. Raise :class:`StreamwardenError` with a code of the catalogue; free text goes into ``what``.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

__all__ = ["CATALOGUE", "OUTAGES", "ErrorKind", "StreamwardenError", "require_extra"]


@dataclass(frozen=True)
class ErrorKind:
    """One entry of the catalogue.

    Parameters
    ----------
    summary
        What kind of thing went wrong, in half a sentence.
    remedy
        What a person does about it.
    retryable
        Whether starting again, with nothing changed, can succeed. A supervisor does not spend its failure budget on
        errors that cannot go away by themselves.
    """

    summary: str
    remedy: str
    retryable: bool = False


OUTAGES = frozenset({"S3_UNREACHABLE", "S3_THROTTLED"})
"""Of a store that is away for a while: they say nothing of a job."""

CATALOGUE: dict[str, ErrorKind] = {
    # Configuration
    "CONFIG_NOT_FOUND": ErrorKind(
        "a configuration file does not exist",
        "Create it, or point STREAMWARDEN_CONFIG at the folder that holds jobs/ and profiles/.",
    ),
    "CONFIG_INVALID": ErrorKind(
        "a configuration file does not say what it should",
        "Correct the named field in the named file; docs/configuration.md lists every field with its default.",
    ),
    "RUN_CONF_UNKNOWN": ErrorKind(
        "a DAG run was triggered with a key that its DAG does not know",
        "Nothing was done. Trigger the DAG again with the keys that are named as known; its form tells what they mean.",
    ),
    "JOB_UNKNOWN": ErrorKind(
        "no job of this name is configured",
        "See config/jobs/ for the names, or add config/jobs/NAME.yaml.",
    ),
    "JOB_MODULE_INVALID": ErrorKind(
        "the job's module cannot be used",
        "The module needs transform() and OUTPUTS as in docs/jobs.md; correct it, or `module` in the job's YAML.",
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
    "JAR_MISSING": ErrorKind(
        "a pinned JVM jar is not in the jar folder",
        "Run `make setup`; set STREAMWARDEN_JARS if the jars live elsewhere.",
    ),
    "JAR_HASH_MISMATCH": ErrorKind(
        "a JVM jar is not the pinned one",
        "Delete the file and run `make setup` again. If it repeats, do not trust the repository that served it.",
    ),
    "JAR_DOWNLOAD_FAILED": ErrorKind(
        "a pinned JVM jar could not be downloaded",
        "Check the network; behind a mirror, set STREAMWARDEN_MAVEN_REPO to its root. Then run `make setup` again.",
        retryable=True,
    ),
    # Control
    "DOCUMENT_CONFLICT": ErrorKind(
        "a control document was changed by somebody else at the same time",
        "Repeat the command; if it goes on, two operators work on the same job.",
        retryable=True,
    ),
    "DOCUMENT_INVALID": ErrorKind(
        "a control document cannot be read",
        "It is empty or cut, as after a full disk or a power loss, or was written by another version or by hand. Of a"
        " job: `streamwarden repair JOB`. Another one: bring it back from a copy.",
    ),
    "REPAIR_IMPOSSIBLE": ErrorKind(
        "a damaged control document can't be restored from what else is known",
        "Bring it back from a copy of the disk or bucket, then start the job. To guess would be to lose rows, or to"
        " have them twice.",
    ),
    "LEASE_HELD": ErrorKind(
        "another driver runs this job",
        "Only one driver may run a job. Stop the other one first (`streamwarden stop JOB`), or let it run.",
    ),
    "LEASE_LOST": ErrorKind(
        "this driver lost the job's lease",
        "Another driver took over, or this one was paused for longer than the lease lasts. Nothing was written after.",
        retryable=True,
    ),
    "DRIVER_DID_NOT_START": ErrorKind(
        "the driver process ended, or said nothing, before it ran",
        "Read its log: `streamwarden logs JOB`.",
        retryable=True,
    ),
    "DRIVER_DIED": ErrorKind(
        "the driver process ended without saying why",
        "It was killed (kill -9, out of memory) or crashed; `streamwarden logs JOB` has its last words.",
        retryable=True,
    ),
    "DRIVER_SILENT": ErrorKind(
        "the driver sends no heartbeat",
        "It hangs, is suspended, or cannot reach the control documents; `streamwarden logs JOB` has its last words.",
        retryable=True,
    ),
    "DRIVER_STUCK": ErrorKind(
        "the driver lived and committed no batch, and was ended for it",
        "See what it hung on: `streamwarden logs JOB --source spark`. A task, or a store that does not answer: correct"
        " that. Honest batches that take so long: raise trigger.timeout, or make them smaller (max_files_per_batch; of"
        " Kafka max_offsets_per_batch).",
        retryable=True,
    ),
    "DRIVER_KILLED": ErrorKind(
        "the driver did not stop, and was killed by hand",
        "Nothing is lost: the next start finishes the batch that was in flight (`streamwarden deploy JOB`). What it"
        " hung on: `streamwarden logs JOB --source spark`.",
        retryable=True,
    ),
    "LOG_NOT_FOUND": ErrorKind(
        "there is no such log file",
        "Give --source driver, spark or console, and an incarnation that `streamwarden status JOB --json` shows.",
    ),
    "NOT_DEPLOYED": ErrorKind(
        "the job was never deployed here",
        "Deploy it: `streamwarden deploy JOB`, or trigger its DAG.",
    ),
    "STOP_TIMED_OUT": ErrorKind(
        "the driver did not stop in time",
        "The batch in flight may be long: look at `streamwarden status JOB`, then repeat with a larger --timeout. If it"
        " hangs: `streamwarden stop JOB --kill`; the next start finishes the batch.",
        retryable=True,
    ),
    "STOP_INCOMPLETE": ErrorKind(
        "not every job was stopped",
        "The named ones were not, each for the reason behind its name; all others are. Wait for an operation to end"
        " (`streamwarden operations JOB`), or cancel a rescale, then stop them again. One that hangs: `streamwarden"
        " stop JOB --kill`.",
        retryable=True,
    ),
    "STATE_LIMIT_REACHED": ErrorKind(
        "the job's state has reached the number of keys that its spec allows",
        "Look for what makes so many keys (one that never repeats, a TTL or watermark that never lets go); correct the"
        " job or raise health.state_rows.critical, then deploy it again: it goes on where it stopped.",
    ),
    "ALERTS_INVALID": ErrorKind(
        "a notifier of config/alerts.yaml cannot be used",
        "Correct its class or arguments; the class must be an Airflow notifier that the worker can import.",
    ),
    "JOB_UNWATCHED": ErrorKind(
        "nobody looks after a job that is to run: if its driver dies, it stays down",
        "Unpause its DAG job_JOB, or trigger it: a driver that runs is left alone and supervised. One that is to run"
        " without is stopped with `streamwarden stop JOB`, or the DAG `watch` paused. One whose YAML is gone has no"
        " DAG: bring the file back, or stop it; docs/jobs.md says how a job is renamed.",
    ),
    "RESTART_BUDGET_SPENT": ErrorKind(
        "the job failed more often than its restart budget allows",
        "Read the last error, remove its cause, then deploy the job again.",
    ),
    # Observability
    "PROGRESS_TABLE_MISSING": ErrorKind(
        "there is no table of batches",
        "It is made with the first batches that a driver writes down; see that `progress_table` of the profile is on.",
    ),
    "PROGRESS_TABLE_FAILED": ErrorKind(
        "the table of batches could not be read or looked after",
        "The store's word is above; repeat it once the store is well. Batches don't depend on this table.",
        retryable=True,
    ),
    # S3
    "S3_REFUSED": ErrorKind(
        "S3 refused a request",
        "The server's word is above. Wrong key or signature: correct AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and"
        " the clock. Access denied: give that user the rights that docs/deployment.md lists under On S3.",
    ),
    "S3_CREDENTIALS_MISSING": ErrorKind(
        "there are no credentials for S3",
        "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for this process, or give its machine a role. A driver has the"
        " environment of what started it.",
    ),
    "S3_BUCKET_MISSING": ErrorKind(
        "the bucket does not exist",
        "Make it, or correct `bucket` and `endpoint` of the profile's `s3`. It is never made by itself.",
    ),
    "S3_UNREACHABLE": ErrorKind(
        "S3 does not answer",
        "Check the server, the network, and `endpoint` of the profile's `s3`. What was asked may have been done or not,"
        " and may be repeated.",
        retryable=True,
    ),
    "S3_THROTTLED": ErrorKind(
        "S3 asks to be asked less often",
        "It passes by itself. If it lasts: fewer jobs under one prefix, or longer trigger intervals and heartbeats.",
        retryable=True,
    ),
    "S3_OBJECT_DAMAGED": ErrorKind(
        "an object's bytes do not match its checksum",
        "Read it again; if it repeats, it was damaged where it is stored. Put it back from a version that the bucket"
        " keeps, or restore the job from a savepoint.",
    ),
    # Airflow on one machine
    "AIRFLOW_PORT_TAKEN": ErrorKind(
        "Airflow's port is in use",
        "Stop what listens there (an Airflow of another folder?), or choose another port.",
    ),
    "AIRFLOW_DID_NOT_START": ErrorKind(
        "Airflow did not come up",
        "Its components' logs are in logs/ of its home; what ended says why in its own.",
        retryable=True,
    ),
    "POSTGRES_MISSING": ErrorKind(
        "no PostgreSQL server is installed",
        "Install one (Debian: `apt-get install postgresql`), or put its `initdb` and `postgres` on PATH.",
    ),
    "POSTGRES_DID_NOT_START": ErrorKind(
        "the private Postgres did not come up",
        "Its own words are above. Run by root, it runs as `postgres`, who must be able to reach its folder.",
        retryable=True,
    ),
    "AIRFLOW_REQUEST_FAILED": ErrorKind(
        "Airflow refused a request, or what was waited for did not come",
        "The server's words are above; the task's log has more.",
        retryable=True,
    ),
    "DEMO_FAILED": ErrorKind(
        "the demo did not go as it must",
        "Read the logs that it names; run it again on a machine with less to do if something took too long.",
        retryable=True,
    ),
    # Driver
    "SOURCE_INVALID": ErrorKind(
        "the job's source cannot be read",
        "Check `source` in the job's YAML, and that the table is a Delta table of the expected columns.",
    ),
    "BATCH_FAILED": ErrorKind(
        "a batch failed more often than is tolerated",
        "The error of the last try is below; correct its cause. The batch will be tried whole, and nothing is twice.",
        retryable=True,
    ),
    "DRIVER_FAILED": ErrorKind(
        "the driver failed outside of a batch",
        "Its log has the whole trace: `streamwarden logs JOB`.",
        retryable=True,
    ),
    "STATE_SCHEMA_CHANGED": ErrorKind(
        "the query keeps other state than the checkpoint holds",
        "Bring back the query as it was, or restore a savepoint of the query as it is. A query with other state is"
        " another job: give it a name and tables of its own.",
    ),
    "SOURCE_SCHEMA_CHANGED": ErrorKind(
        "the source table's columns changed in a way that its stream can't follow",
        "Bring the columns back. If they are to stay as they are now, the old rows can't be read with the new: have the"
        " writer make a new table, and the job read that one. A column that was only added is followed by itself.",
    ),
    "SOURCE_ROWS_CHANGED": ErrorKind(
        "rows of the source table were updated, deleted or overwritten",
        "A stream can't take rows back. To go on without that commit, set source.on_change: skip in the job's YAML and"
        " deploy: commits that change or delete rows are then passed over whole, with the rows that came with them."
        " What the job has read before stays in its outputs; outputs as the table is now take a job of another name,"
        " which begins with the whole table. Putting the table back is another such commit, and no savepoint helps.",
    ),
    "SOURCE_REPLACED": ErrorKind(
        "the source is not the one that the checkpoint was reading",
        "Its table was made anew, or `source` points elsewhere: bring the old one back. Offsets of one source mean"
        " nothing in another.",
    ),
    "SOURCE_DATA_GONE": ErrorKind(
        "the source no longer has data that the job has yet to read",
        "Bring the files back as they were (`cp -p`), and deploy again. They were removed by hand, by VACUUM, or by the"
        " table's log retention: make both longer than the job may ever lag behind. If a table's are gone for good, a"
        " job of another name begins with the table as it is. A landed file that is gone for good: put an empty file of"
        " that name in its place, and the job quarantines it by its name. Records that Kafka has dropped don't come"
        " back: keep a topic's for as long.",
    ),
    "OUTPUT_DATA_GONE": ErrorKind(
        "a file of an output table is missing",
        "Bring it back, or restore a savepoint whose table version does not need it.",
    ),
    "TABLE_DAMAGED": ErrorKind(
        "an entry of a Delta table's log is empty, cut or missing",
        "Bring it back from a copy of the disk or bucket, or restore a savepoint of before it: a restore takes the log"
        " back to there. Without either, deploy the job under another name with tables of its own: it begins anew.",
    ),
    "OUT_OF_MEMORY": ErrorKind(
        "the JVM ran out of heap",
        "Raise resources.memory of the job, or make its batches smaller (source.max_files_per_batch; of Kafka"
        " max_offsets_per_batch).",
        retryable=True,
    ),
    "JVM_DIED": ErrorKind(
        "the driver's JVM ended without saying why",
        "It was killed from outside, by a person or by a kernel that is short of memory: see the kernel's log.",
        retryable=True,
    ),
    "JVM_CRASHED": ErrorKind(
        "the driver's JVM crashed",
        "The hs_err file beside the driver's logs names the code that it happened in. If it repeats, report it there.",
        retryable=True,
    ),
    "PYTHON_WORKER_DIED": ErrorKind(
        "a Python worker of Spark ended without saying why",
        "It was killed, as a kernel does that is short of memory, or crashed in native code: see the kernel's log. The"
        " workers' memory is not part of resources.memory.",
        retryable=True,
    ),
    "CONCURRENT_WRITER": ErrorKind(
        "somebody else writes to an output table, or to the job's checkpoint, at the same time",
        "One writer a table: find the other one in the table's history (DESCRIBE HISTORY), and stop it. One query a"
        " checkpoint: find the one that was started on this one by hand.",
        retryable=True,
    ),
    "JOB_CODE_FAILED": ErrorKind(
        "the job's own Python code raised an exception",
        "Its traceback is first below: correct the code, or the data that it can't take, then deploy the job again. The"
        " batch will be tried whole, and nothing is twice.",
        retryable=True,
    ),
    "STOP_UNCLEAN": ErrorKind(
        "the query ended with a batch begun and not committed",
        "The next start finishes that batch; nothing is lost. If it repeats, report it with the driver's log.",
        retryable=True,
    ),
    "STATE_PARTITIONS_FIXED": ErrorKind(
        "the checkpoint was made with another number of state partitions",
        "Spark fixes it in the checkpoint. Set state.partitions back; changing it is a rescale, not a restart.",
    ),
    "STATE_BACKEND_FIXED": ErrorKind(
        "the checkpoint was made with another state backend",
        "Set state.backend back: state of one backend cannot be read by the other.",
    ),
    "SINK_SCHEMA_MISMATCH": ErrorKind(
        "an output table has columns that the job can't write",
        "Each column is named with what it takes. Columns that take nulls may be there beside the job's, and one that"
        " the job has newly got is added; any other difference is one of these.",
    ),
    "SINK_KEY_TWICE": ErrorKind(
        "a batch has several rows for one key of an upserted table",
        "If the rows are versions of one, keep one for each key in the job's outputs(), or group by the sink's `keys`"
        " in its transform(). If they are different rows, add the column that tells them apart to `keys`. Then deploy"
        " the job: the batch is tried again, whole.",
    ),
    # Savepoints
    "SAVEPOINT_NOTHING": ErrorKind(
        "the job has nothing to take a savepoint of",
        "Deploy it and wait for its first committed batch.",
    ),
    "SAVEPOINT_OUTRUN": ErrorKind(
        "Spark removed old state files faster than they were copied",
        "Raise state.min_batches_to_retain or trigger.interval of the job, or stop it with the savepoint (--stop).",
        retryable=True,
    ),
    "SAVEPOINT_FAILED": ErrorKind(
        "a savepoint could not be taken",
        "Correct the cause and take it again; nothing is left of it, and the job goes on.",
        retryable=True,
    ),
    "SAVEPOINT_UNSUPPORTED": ErrorKind(
        "a checkpoint or savepoint is in a format that is not known here",
        "A checkpoint: leave out spark.sql.streaming.stateStore.checkpointFormatVersion from a fresh job's settings. A"
        " savepoint: restore it with the newer Streamwarden that took it.",
    ),
    "SAVEPOINT_NOT_FOUND": ErrorKind(
        "there is no such savepoint",
        "`streamwarden savepoints list JOB` shows those that there are.",
    ),
    "SAVEPOINT_DAMAGED": ErrorKind(
        "a savepoint is not whole",
        "Use another one; `streamwarden savepoints verify JOB ID` names the files. Delete this one if it is of no use.",
    ),
    "SAVEPOINT_IN_USE": ErrorKind(
        "a savepoint is protected",
        "Remove its label, or wait for the operation that starts from it; the newest verified one of a running job is"
        " never removed without --force.",
    ),
    "SAVEPOINT_LABEL_INVALID": ErrorKind(
        "a savepoint can't have this label",
        "Choose another: not `latest` or `all`, no blank at its ends, and none that names another one of the job.",
    ),
    "SAVEPOINT_VERIFY_FAILED": ErrorKind(
        "a savepoint could not be looked through",
        "Nothing is said of the savepoint itself. Correct the cause and verify again.",
        retryable=True,
    ),
    "CHECKPOINT_DAMAGED": ErrorKind(
        "a file that the checkpoint needs is missing or damaged",
        "The job cannot go on from it: restore the newest verified savepoint (`streamwarden restore JOB`).",
    ),
    # Restore
    "OPERATION_RUNNING": ErrorKind(
        "another operation works on this job",
        "Wait for it, or look at it with `streamwarden status JOB`.",
        retryable=True,
    ),
    "OPERATION_UNFINISHED": ErrorKind(
        "a rescale of this job was interrupted half way, and only it can end in the new state or go back",
        "Let it go on: its task in Airflow is tried again, or clear it; or `streamwarden rescale JOB --resume`. Then"
        " ask again. Where it fails each time: `streamwarden operations abandon JOB`.",
    ),
    "OPERATION_ABANDONED": ErrorKind(
        "somebody has ended an unfinished operation by hand",
        "Nothing was rolled back: `streamwarden status JOB` shows what is in force. To go back, restore the savepoint"
        " that the operation took (`streamwarden savepoints list JOB`).",
    ),
    "OPERATION_FAILED": ErrorKind(
        "an operation could not go on",
        "The job is where it was, or where `streamwarden status JOB` says. Correct the cause and repeat the operation.",
        retryable=True,
    ),
    "OPERATION_INTERRUPTED": ErrorKind(
        "an operation was taken over or given up before it ended",
        "`streamwarden status JOB` shows what runs now; repeat the operation if it is still wanted.",
        retryable=True,
    ),
    "RESTORE_JOB_VERSION": ErrorKind(
        "the savepoint's state is of another version of the job",
        "Bring back the module of that version, or restore a savepoint that this version took.",
    ),
    "RESTORE_OPERATORS": ErrorKind(
        "the savepoint has other stateful operators than the job",
        "Bring back the query as it was, or restore a savepoint of the query as it is.",
    ),
    "RESTORE_STATE_SCHEMA": ErrorKind(
        "the savepoint's state has another schema than the job's",
        "Bring back the query as it was, or restore a savepoint of the query as it is.",
    ),
    "RESTORE_PARTITIONS": ErrorKind(
        "the savepoint has another number of state partitions than the job's YAML asks for",
        "Set state.partitions to the savepoint's; `streamwarden rescale JOB --partitions N` changes it.",
    ),
    "RESTORE_BACKEND": ErrorKind(
        "the savepoint is of another state backend",
        "Set state.backend to the savepoint's: state of one backend cannot be read by the other.",
    ),
    "RESTORE_SPARK_VERSION": ErrorKind(
        "the savepoint was written by another Spark that this one may not be able to read",
        "Run the Spark version that wrote it, or a later one of the same major version.",
    ),
    "RESTORE_SOURCE_CHANGED": ErrorKind(
        "the job reads another source than when the savepoint was taken",
        "Point `source` back to what it was; offsets of one source mean nothing in another.",
    ),
    "RESTORE_SOURCE_GONE": ErrorKind(
        "the source no longer has all data that came after the savepoint",
        "Choose a newer savepoint, or bring the data back. Otherwise rows would be lost in silence.",
    ),
    "RESTORE_OUTPUT_GONE": ErrorKind(
        "an output table can't be put back to the savepoint's version",
        "Its version was vacuumed or cleaned from the log: choose a newer savepoint, or leave the outputs as they are"
        " (--outputs leave).",
    ),
    "RESTORE_OUTPUT_TAKEN": ErrorKind(
        "a clone's output table is somebody else's",
        "Give the clone tables of its own in its YAML: they are written over with copies of the first job's.",
    ),
    "RESTORE_BREAKS_READERS": ErrorKind(
        "another job streams from a table that would be put back",
        "Leave the outputs (--outputs leave) if its rows have keys; else give the reading job a savepoint from before"
        " and restore it too, while it is stopped.",
    ),
    "RESTORE_UNHEALTHY": ErrorKind(
        "the restored job did not become healthy, and was rolled back",
        "Its error is above; the job runs on from where it was. `streamwarden logs JOB` has the driver's words.",
    ),
    # Rollout
    "ROLLOUT_REFUSED": ErrorKind(
        "what changed can't be rolled out",
        "Take the named change back, and deploy again; `streamwarden diff JOB` shows each with its reason.",
    ),
    "ROLLOUT_UNHEALTHY": ErrorKind(
        "the job did not become healthy as its YAML says now, and runs as it did before",
        "The new driver's error is above, its words in `streamwarden logs JOB --incarnation ID`; `streamwarden"
        " operations JOB` has the id and how the job went back. Correct the job, and deploy again.",
    ),
    # Rescale
    "RESCALE_NOTHING": ErrorKind(
        "the rescale would change nothing",
        "Name a number of partitions, cores or an amount of memory that the job does not have; `streamwarden status`"
        " shows what it has.",
    ),
    "RESCALE_NOT_AS_APPROVED": ErrorKind(
        "the job has changed since its rescale was approved",
        "Trigger the rescale again, so that what it would change now is approved.",
    ),
    "RESCALE_INVALID": ErrorKind(
        "the target of the rescale is not valid",
        "The field's bounds are in docs/configuration.md.",
    ),
    "RESCALE_UNSUPPORTED": ErrorKind(
        "the job's state can't be spread over another number of partitions",
        "Its cores and memory can be changed. Another number of partitions needs the rocksdb backend, the Spark version"
        " that wrote the checkpoint, and operators that docs/rescaling.md lists; else make another job of it, which"
        " begins with a checkpoint of its own.",
    ),
    "RESCALE_NOT_HEALTHY": ErrorKind(
        "the job is not well enough to be rescaled",
        "`streamwarden status JOB` shows what is wrong. Cure that first: a rescale would not, and could not tell its"
        " own faults from those before it.",
    ),
    "RESCALE_NO_SPACE": ErrorKind(
        "there is not enough space for a copy of the checkpoint",
        "Free some, or let housekeeping remove savepoints: `streamwarden savepoints list JOB` shows their own bytes.",
    ),
    "RESCALE_STATE_DIFFERS": ErrorKind(
        "the repartitioned state is not the state that it was made of",
        "The job runs on as before, from its untouched checkpoint. If a batch was replayed: does the job compute the"
        " same twice? By random numbers or the clock it does not; ask for the way `plain`. Else report this, with the"
        " operation's record: it is a fault of Spark's or of this program.",
    ),
    "RESCALE_FAILED": ErrorKind(
        "Spark could not repartition the state",
        "Its words are above; the job runs on as before.",
    ),
    "RESCALE_REHEARSAL_FAILED": ErrorKind(
        "the process that was to take over ended while it rehearsed the job",
        "Why is above, and the end of its log says more. Nothing was touched, and the job runs on as before. Out of"
        " memory: ask for more.",
    ),
    "RESCALE_UNHEALTHY": ErrorKind(
        "the rescaled job did not become healthy, and was rolled back",
        "The new driver's error is above; the job runs on as before. `streamwarden operations JOB` has the steps.",
    ),
    "RESCALE_SLOW": ErrorKind(
        "the rescaled job runs, and was not caught up in time",
        "Give it more time (`--health-timeout`), or more cores; `--on-timeout hold` leaves it as it is.",
    ),
    "OPERATION_CANCELLED": ErrorKind(
        "somebody has cancelled the operation",
        "The job runs on as before. Ask for it again when it is wanted.",
    ),
    "OPERATION_TOO_LATE": ErrorKind(
        "the operation can't be cancelled any more",
        "The new driver was started: if it does not become healthy in time, the job goes back by itself. To go back"
        " from a healthy one, rescale again, or restore the pre-rescale savepoint.",
    ),
    "OPERATION_NONE": ErrorKind(
        "there is no such operation on the job",
        "`streamwarden operations JOB` shows what was done.",
    ),
    # Landed files
    "LANDING_NONE": ErrorKind(
        "no landing folder is meant",
        "Name a job that reads files with --job: its YAML says `source: {kind: files}`.",
    ),
    "LANDING_UNREADABLE": ErrorKind(
        "a landing folder can't be read",
        "See that the folder is there, is mounted, and may be read by whoever runs Streamwarden. Nothing is lost: files"
        " are read once it is back.",
        retryable=True,
    ),
    "LANDING_FILE_UNKNOWN": ErrorKind(
        "a landed file can't be read again",
        "`streamwarden landing list --all` shows the files and how their names are written here.",
    ),
    "LANDING_WOULD_DOUBLE": ErrorKind(
        "reading a file again would count its rows twice",
        "Give the outputs keys, so that rows that are there already are dropped. If none of its rows is in"
        " a table any more, pass --double.",
    ),
    # Trips
    "REPLAY_SOURCE_INVALID": ErrorKind(
        "the replay's source cannot be used",
        "Give a TLC trip-record Parquet file (green), or `generator`.",
    ),
    "REPLAY_CONFLICT": ErrorKind(
        "the landing folder holds a replay with other options",
        "Resume with the options it was started with, or choose another landing folder, or pass --restart.",
    ),
    "REPLAY_RUNNING": ErrorKind(
        "another replay feeds this landing folder",
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
        "The report names each failed expectation with failing rows; correct the data or the suite.",
    ),
}


class StreamwardenError(Exception):
    """An error with a stable code and a remedy.

    Parameters
    ----------
    code
        A key of :data:`CATALOGUE`.
    what
        What happened, with the names and values of this case.
    remedy
        Replaces the catalogue's remedy where this case has a more precise one.
    retryable
        Replaces the catalogue's word on whether another try may help, where this case is another.

    Raises
    ------
    KeyError
        If the code is not in the catalogue: a mistake of the program, found by any test that reaches it.
    """

    def __init__(self, code: str, what: str, *, remedy: str | None = None, retryable: bool | None = None) -> None:
        kind = CATALOGUE[code]
        self.code = code
        self.what = what
        self.remedy = remedy or kind.remedy
        self.retryable = kind.retryable if retryable is None else retryable
        super().__init__(code, what, self.remedy)

    def __str__(self) -> str:
        return f"[{self.code}] {CATALOGUE[self.code].summary}: {self.what}\n  What to do: {self.remedy}"

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions cross process borders (Airflow pickles them); the default would pass the wrong arguments.
        return (_rebuild, (self.code, self.what, self.remedy, self.retryable))


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


def _rebuild(code: str, what: str, remedy: str, retryable: bool | None = None) -> StreamwardenError:
    return StreamwardenError(code, what, remedy=remedy, retryable=retryable)
