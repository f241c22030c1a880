"""The keys of ROOT: the one place that builds or parses them. A name that could lead elsewhere is ``NAME_INVALID``.

A key is a path below ROOT, on disk or in the bucket. Only ``landing``, ``logs``, ``quality``, ``scratch`` and
``serving`` are always on the local disk. A generation is six digits. The names inside a checkpoint, a Delta log and a
folder of plans are in :mod:`streamwarden.formats` and :mod:`streamwarden.landing.plans`::

    arrivals/JOB/gNNNNNN/            plans of batches
    checkpoints/JOB/gNNNNNN/         a generation's checkpoint, which Spark writes
    control/JOB/                     control documents, see streamwarden.store.documents
        NAME.json                    desired, checkpoint, lease, operation, supervision, supervisor, health, ...
        incarnations/ID/NAME.json    launch, stop, heartbeat, progress, exit
        operations/ID.json           ended operations
        rereads/ID.json              requests to read landed files again
        savepoints/ID.json           the records of savepoints, which change
        totals/gNNNNNN.json          sums over a generation
    hosts/NAME.json                  a driver host's sign of life
    hosts/starts/INCARNATION.json    asks the driver hosts for a driver
    gate/TABLE.json                  what the gate decided about a table's versions
    landing/                         where jobs usually read files; their YAML names the folder
    logs/JOB/INCARNATION/            driver.log, spark.log, console.log; hs_err_PID.log if the JVM died
    published/TABLE/_delta_log/      the published versions of a table, see streamwarden.formats.published_log
    quality/RUN/                     results.json and report.html of a check; index.html beside it
    serving/TABLE.sqlite             newest rows by key, of a sink with `serve`
    savepoints/JOB/ID/               manifest.json and checkpoint/, which never change
    scratch/JOB/INCARNATION/         temporary files of a running driver
    scratch/_spares/SPARE/           of a spare, see streamwarden.runtime.spares; its logs are in logs/_spares/
    tables/TABLE/                    a Delta table
"""

from __future__ import annotations

import re
from functools import lru_cache

from streamwarden.names import part

ARRIVALS, CHECKPOINTS, CONTROL, SAVEPOINTS, TABLES = "arrivals", "checkpoints", "control", "savepoints", "tables"
GATE, PUBLISHED = "gate", "published"
HOSTS = "hosts"
STARTS = f"{HOSTS}/starts"
LOGS, QUALITY, SCRATCH, SERVING = "logs", "quality", "scratch", "serving"
SPARES = "_spares"
"""In place of a job: no job has such a name."""
CONSOLE_LOG = "console.log"
"""In an incarnation's folder of logs: what its process prints."""
SUBMISSION_LOG = "submission.log"
"""In an incarnation's folder of logs, on the machine that submits it to a cluster."""
# The folders below control/JOB.
INCARNATIONS, OPERATIONS, RECORDS, REREADS, TOTALS = "incarnations", "operations", "savepoints", "rereads", "totals"
LAUNCH = f"{INCARNATIONS}/launch"
"""The kind of launch documents, see :func:`kind_of`."""


def table_key(table: str) -> str:
    """Return the folder of a Delta table."""
    return f"{TABLES}/{part(table)}"


def delta_log_key(table: str) -> str:
    """Return the folder of a Delta table's log."""
    return f"{TABLES}/{part(table)}/_delta_log"


def published_key(table: str) -> str:
    """Return the folder of a table's published versions, itself a Delta table."""
    return f"{PUBLISHED}/{part(table)}"


def published_log_key(table: str) -> str:
    """Return the folder of the log of a table's published versions."""
    return f"{PUBLISHED}/{part(table)}/_delta_log"


def gate_key(table: str) -> str:
    """Return the key of the gate's document of a table."""
    return f"{GATE}/{part(table)}.json"


def gate_events_key(table: str) -> str:
    """Return the key of the document with the last decision that became an asset event."""
    return f"{GATE}/{part(table)}.events.json"


def host_key(name: str) -> str:
    """Return the key of a driver host's sign of life."""
    return f"{HOSTS}/{part(name)}.json"


def start_key(incarnation: str) -> str:
    """Return the key of the request for an incarnation's driver."""
    return f"{STARTS}/{part(incarnation)}.json"


@lru_cache(16_384)  # A list of a hundred jobs asks for two thousand, and again after seconds.
def job_key(folder: str, job: str, *names: str) -> str:
    """Return a job's folder in one of ROOT's folders, or what `names` lead to below it."""
    return "/".join((folder, part(job), *map(part, names)))


def checkpoint_key(job: str, generation: int) -> str:
    """Return the folder of a generation's checkpoint."""
    return job_key(CHECKPOINTS, job, f"g{generation:06d}")


def plans_key(job: str, generation: int) -> str:
    """Return the folder of the plans that a job began in a generation."""
    return job_key(ARRIVALS, job, f"g{generation:06d}")


def serving_key(table: str) -> str:
    """Return the key of the SQLite file of a table's serving store."""
    return f"{SERVING}/{part(table)}.sqlite"


def savepoint_key(job: str, savepoint: str) -> str:
    """Return a savepoint's folder."""
    return job_key(SAVEPOINTS, job, savepoint)


def savepoint_manifest_key(job: str, savepoint: str) -> str:
    """Return the key of a savepoint's manifest."""
    return f"{savepoint_key(job, savepoint)}/manifest.json"


def savepoint_checkpoint_key(job: str, savepoint: str) -> str:
    """Return the folder of a savepoint's copied checkpoint."""
    return f"{savepoint_key(job, savepoint)}/checkpoint"


def document_key(job: str, *names: str) -> str:
    """Return the key of a control document, such as ``("lease",)`` or ``(INCARNATIONS, incarnation, "launch")``."""
    return f"{job_key(CONTROL, job, *names)}.json"


def totals_key(job: str, generation: int) -> str:
    """Return the key of a generation's totals document."""
    return document_key(job, TOTALS, f"g{generation:06d}")


def generation_of(key: str) -> int | None:
    """Return the generation that names a folder or document; None if its name is no generation's."""
    found = re.fullmatch(r"g(\d+)(?:\.json)?", key.rpartition("/")[2])
    return int(found[1]) if found is not None else None


def job_of(key: str) -> str | None:
    """Return the job of a control document or a checkpoint; None for other keys."""
    folder, job, name = [*key.split("/", 2), "", ""][:3]
    return job if folder in (CONTROL, CHECKPOINTS) and name else None


def kind_of(document: str) -> str:
    """Return a control document's key without job and id: ``lease``, ``savepoints``, ``incarnations/launch``."""
    return "/".join(document.removesuffix(".json").split("/")[2::2])


def id_of(document: str) -> str:
    """Return the id in the key of a document of an incarnation, operation, reread or savepoint."""
    return document.removesuffix(".json").split("/")[3]


def plans_folder_of(path: str) -> str | None:
    """Return the folder of plans of a file, given any path that ends with its key; None if it is no such file."""
    *_, folder, job, generation, _ = ["", "", "", *path.split("/")]
    return job_key(folder, job, generation) if folder == ARRIVALS else None
