"""Examine one job: documents, operation, checkpoint, tables, savepoints, driver, leftovers."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

from streamwarden import __version__
from streamwarden.errors import ErrorCode, StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.checkpoint_files import check_described, newest_closure
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.model.operation import Operation
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import CheckpointRef, OutputStart
from streamwarden.operations.diagnosis import diagnose
from streamwarden.operations.doctor.case import Case
from streamwarden.operations.doctor.findings import Finding, Verdict, broken, note, of_error, whole
from streamwarden.operations.repair import repair
from streamwarden.runtime import work_dirs
from streamwarden.runtime.operation_lock import active_operation
from streamwarden.savepoints.compatibility import missing_outputs
from streamwarden.savepoints.documents import is_interrupted, record_document
from streamwarden.savepoints.older_copies import check_read, check_written
from streamwarden.savepoints.table_damage import check_output, check_source
from streamwarden.store.layout import CHECKPOINTS, CONTROL, RECORDS, id_of, job_key
from streamwarden.supervision.observe import Phase, observe

__all__ = ["examine_job"]

_LOOKS = 3
"""Looks at a running job's checkpoint and tables: a batch may come between the two."""

_DOWN = (Phase.FAILED, Phase.DEAD, Phase.SILENT)
_STARTS = ("streamwarden restore", "streamwarden deploy")


def examine_job(case: Case) -> list[Finding]:
    """Return the findings about a job, in the order in which they are mended."""
    found: list[Finding] = []
    parts: dict[str, Callable[[Case], Iterator[Finding]]] = {
        "documents": _documents,
        "operation": _operation,
        "checkpoint": _checkpoint,
        "tables": _tables,
        "savepoints": _savepoints,
        "leftovers": _leftovers,
    }
    for about, part in parts.items():
        try:
            found += part(case)
        except StreamwardenError as error:
            # A damaged document was reported by the first part.
            if error.code != "DOCUMENT_INVALID":
                found.append(of_error(case.job, about, error))
        except OSError as error:
            code: ErrorCode = "TABLE_DAMAGED" if about == "tables" else "CHECKPOINT_DAMAGED"
            found.append(broken(case.job, about, code, f"{error}"))
    causes = [one for one in found if one.verdict is Verdict.BROKEN and not one.about.startswith("savepoint ")]
    return [*found, *_driver(case, is_explained=bool(causes))]


def _documents(case: Case) -> Iterator[Finding]:
    job, about = case.job, "documents"
    try:
        mends = repair(case.workspace, job, by="doctor", dry_run=True)
    except StreamwardenError as error:
        yield _unrepairable(case, error) if error.code == "REPAIR_IMPOSSIBLE" else of_error(job, about, error)
        return
    # Without this document the job is not deployed; the repaired one is suspended.
    stopped = any(one.document.endswith("/desired.json") for one in mends) or case.desired is None
    then = (f"streamwarden deploy {job}",) if stopped else ()
    commands = (f"streamwarden repair {job} --yes", *then)
    for one in mends:
        yield broken(job, about, "DOCUMENT_INVALID", f"{one.document}: {one.how}", commands)
    if not mends:
        yield whole(job, about, f"{len(case.workspace.storage.list(case.documents.base))} can be read")
    incarnations = case.documents.incarnations()
    beat = case.documents.heartbeat(incarnations[-1]).read() if incarnations else None
    writer = beat.versions.get("streamwarden", "") if beat is not None else ""
    if _release(writer) > _release(__version__):
        yield note(job, about, f"Streamwarden {writer} wrote them, and this is {__version__}: upgrade this one")


def _unrepairable(case: Case, error: StreamwardenError) -> Finding:
    """Return what leads on if no record shows which checkpoint is in force."""
    if case.workspace.storage.read(case.documents.checkpoint.key) is None:
        return of_error(case.job, "documents", error, case.restore())
    # A restore reads this document, too.
    remedy = (
        f"Move the folder {case.documents.base} away. Then `streamwarden doctor {case.job}` finds what the tables show."
    )
    return broken(case.job, "documents", error.code, error.what, remedy=remedy)


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())


def _operation(case: Case) -> Iterator[Finding]:
    found = case.documents.operation.read()
    if found is None or found.state != "running" or active_operation(case.workspace, case.job) is not None:
        return
    step = f", at {found.steps[-1].name}" if found.steps else ""
    what = f"{found.kind} {found.id} by {found.by} was interrupted{step}: its process is gone"
    remedy = f"Repeat it. If it fails each time: `streamwarden operations abandon {case.job}`."
    yield broken(case.job, "operation", "OPERATION_UNFINISHED", what, (_repeated(found),), remedy=remedy)


def _repeated(operation: Operation) -> str:
    """Return the command that resumes an operation, or begins it anew if somebody else began it."""
    if operation.kind == "rescale":
        return f"streamwarden rescale {operation.job} --resume"
    if operation.kind == "rollout":
        return f"streamwarden deploy {operation.job}"
    given = operation.params
    words = ["streamwarden", "restore", operation.job, "--savepoint", str(given.get("savepoint", "latest"))]
    words += ["--of", str(given["of"])] if given.get("of") else []
    words += ["--outputs", str(given["outputs"])] if given.get("outputs", "default") != "default" else []
    words += ["--suspended"] if given.get("suspended") else []
    words += ["--reason", str(given["reason"])] if given.get("reason") else []
    return shlex.join(words)


def _checkpoint(case: Case) -> Iterator[Finding]:
    reference = case.reference
    if reference is None:
        return
    workspace, reader = case.workspace, CheckpointReader(case.workspace.storage, reference.path)
    try:
        reader.check()
        check_described(workspace.storage, reference.path)
        needed = newest_closure(workspace.files, workspace.storage, reference.path)
    except StreamwardenError as error:
        yield _to_restore(case, "checkpoint", error)
        return
    last = reader.last_commit()
    if last is None and reader.last_offset() is None and reference.base_batch is not None:
        what = f"{reference.path}: it has no batch, and began with batch {reference.base_batch}"
        yield _to_restore(case, "checkpoint", StreamwardenError("CHECKPOINT_DAMAGED", what))
        return
    files = f", {len(needed.files)} files" if needed is not None else ""
    yield whole(case.job, "checkpoint", f"{reference.path}: batch {'none yet' if last is None else last}{files}")


def _to_restore(case: Case, about: str, error: StreamwardenError, *, rewind: bool = False) -> Finding:
    """Return what a restore mends, with the newest savepoint that fits; or what to do without one."""
    commands = case.restore(rewind=rewind)
    if commands:
        remedy = "Restore the newest savepoint that fits."
    else:
        remedy = (
            "No savepoint fits. Bring back the newer part from a backup. Or begin anew: stop the job, remove the"
            f" folders {job_key(CONTROL, case.job)}, {job_key(CHECKPOINTS, case.job)} and those of its output tables,"
            " then deploy."
        )
    return broken(case.job, about, error.code, error.what, commands, remedy=remedy)


def _tables(case: Case) -> Iterator[Finding]:
    reference, spec = case.reference, case.spec
    if spec is None:
        return
    sound = True
    for sink in spec.delta_sinks:
        for one in _output(case, reference, sink.table):
            sound = sound and one.verdict is not Verdict.BROKEN
            yield one
    for table in sorted({source.table for source in spec.delta_sources.values()}):
        try:
            check_source(case.workspace, table)
        except StreamwardenError as error:
            sound = False
            yield of_error(case.job, f"source table {table}", error)
    if reference is None or not sound:
        return
    if reference.outputs or (not reference.fenced and max(reference.highest, reference.generation) > 1):
        yield note(case.job, "tables", "the next start puts them in place, and compares them with the checkpoint")
        return
    yield from _of_one_moment(case, spec, reference)


def _output(case: Case, reference: CheckpointRef | None, table: str) -> Iterator[Finding]:
    about, known = f"table {table}", reference is not None and table in reference.tables
    try:
        check_output(case.workspace, case.job, table, known=known)
    except StreamwardenError as error:
        commands: tuple[str, ...] = ()
        if error.code == "OUTPUT_GONE":
            commands = (f"streamwarden savepoint {case.job}", f"streamwarden restore {case.job} --outputs leave")
        yield of_error(case.job, about, error, commands)
        return
    latest = DeltaLog(case.workspace.files, table).latest
    if latest is None:
        return
    if case.deep:
        for missing in missing_outputs(case.workspace, [OutputStart(table=table, version=latest)]):
            yield _to_restore(case, about, StreamwardenError("OUTPUT_DATA_GONE", missing.what))
            return
    yield whole(case.job, about, f"version {latest}{', all of its files are there' if case.deep else ''}")


def _of_one_moment(case: Case, spec: JobSpec, reference: CheckpointRef) -> Iterator[Finding]:
    reader = CheckpointReader(case.workspace.storage, reference.path)
    for look in range(_LOOKS):
        try:
            check_read(case.workspace, spec, reference, reader)
            check_written(case.workspace, spec, reference, reader)
        except StreamwardenError as error:
            if error.code == "CHECKPOINT_DAMAGED":
                # Reported with the checkpoint.
                return
            if look == _LOOKS - 1:
                yield _to_restore(case, "tables", error, rewind=error.code == "SOURCE_BEHIND")
        else:
            yield whole(case.job, "tables", "checkpoint, outputs and source tables fit together")
            return


def _savepoints(case: Case) -> Iterator[Finding]:
    job = case.job
    for one in case.savepoints:
        about, name = f"savepoint {one.savepoint.id}", one.savepoint.id
        forget = f"streamwarden savepoints delete {job} {name} --force"
        if one.unsupported:
            yield note(job, about, "a later version of Streamwarden wrote it, and only that one can restore it")
        elif one.damage:
            more = f", and {len(one.damage) - 3} more" if len(one.damage) > 3 else ""
            yield broken(job, about, "SAVEPOINT_DAMAGED", f"{'; '.join(one.damage[:3])}{more}", (forget,))
        elif one.gone:
            remedy = "Bring back what it refers to, or delete it: a start from it would lose rows."
            yield broken(job, about, "RESTORE_OUTPUT_GONE", "; ".join(one.gone), (forget,), remedy=remedy)
    sound = [one.savepoint for one in case.savepoints if one.is_whole]
    if sound:
        how = "by all of their bytes" if case.deep else "by names and sizes of their files"
        newest = f"the newest is {sound[0].id}, batch {sound[0].summary.batch}, {sound[0].verdict}"
        yield whole(job, "savepoints", f"{len(sound)} whole {how}; {newest}")


def _leftovers(case: Case) -> Iterator[Finding]:
    command = f"streamwarden housekeeping {case.job}"
    scratch = work_dirs.left(case.workspace, case.job)
    if scratch:
        yield note(case.job, "leftovers", f"scratch folders of ended drivers: {', '.join(scratch[:3])}", command)
    keys = case.workspace.storage.list(job_key(CONTROL, case.job, RECORDS))
    records = [record_document(case.workspace, case.job, id_of(key)).read() for key in keys]
    left = [one.id for one in records if one is not None and (is_interrupted(one) or one.state == "deleting")]
    if left:
        what = f"savepoints whose taking or removal was interrupted: {', '.join(left)}"
        yield note(case.job, "leftovers", what, command)


def _driver(case: Case, *, is_explained: bool) -> Iterator[Finding]:
    """Yield what runs.

    Parameters
    ----------
    is_explained
        Whether another finding comes first: a start would fail, or its commands start the job.
    """
    try:
        seen = observe(case.workspace, case.job)
    except StreamwardenError as error:
        if error.code != "DOCUMENT_INVALID":
            yield of_error(case.job, "driver", error)
        return
    if seen.desired is None:
        return
    if seen.desired.state == "suspended" or seen.phase not in _DOWN or seen.error is None or seen.operation is not None:
        yield whole(case.job, "driver", f"{seen.phase}: {seen.reason}")
        return
    diagnosis = diagnose(case.workspace, seen)
    commands: tuple[str, ...] = ()
    if not is_explained:
        named = diagnosis.command.partition("    #")[0] if diagnosis is not None else ""
        deploy = f"streamwarden deploy {case.job}"
        commands = tuple(dict.fromkeys(filter(None, (named, *(() if named.startswith(_STARTS) else (deploy,))))))
    ended = seen.error.to_exception()
    remedy = diagnosis.act if diagnosis is not None else ended.remedy
    yield broken(case.job, "driver", ended.code, f"{seen.phase}: {seen.reason}", commands, remedy=remedy)
