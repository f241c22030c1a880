"""OpenLineage's events of the gate, built. Imports the client: import this module only if events are sent."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    DatasetFacet,
    InputDatasetFacet,
    RunFacet,
    data_quality_assertions_dataset,
    data_quality_metrics_input_dataset,
    dataset_version_dataset,
    error_message_run,
    job_type_job,
    parent_run,
    tags_run,
)
from openlineage.client.uuid import generate_new_uuid

from streamwarden.errors import StreamwardenError
from streamwarden.formats.published_log import PublishedLog
from streamwarden.model.gate import Decision, Verdict
from streamwarden.quality.decision_facts import result_of
from streamwarden.quality.results import ExpectationResult
from streamwarden.redaction import redacted
from streamwarden.store.layout import published_key, table_key
from streamwarden.store.workspace import Workspace

if TYPE_CHECKING:
    from streamwarden.quality.lineage import RunOf

__all__ = ["checked_table", "error_facets", "new_run_id", "published_table", "run_event", "tag_facets"]

_SEVERITY = {"critical": "error", "warning": "warn"}
"""A suite's severities in the specification's words: `error` blocks the pipeline, `warn` does not."""


def new_run_id() -> str:
    """Return the id of a new run: a UUID that grows with time."""
    return str(generate_new_uuid())


def run_event(
    kind: str,
    run: RunOf,
    parent: RunOf | None,
    root: RunOf | None,
    facets: dict[str, RunFacet],
    inputs: list[InputDataset],
    outputs: list[OutputDataset],
) -> RunEvent:
    """Return an event of a run, which happens now.

    Parameters
    ----------
    kind
        START, RUNNING, COMPLETE, ABORT or FAIL.
    parent
        The run that started it.
    root
        The first of all runs above it; default the parent.
    """
    # `gate watch` has no end of its own; a decision has.
    job_type = job_type_job.JobTypeJobFacet(
        processingType="SERVICE" if run.job == "gate" else "BATCH", integration="STREAMWARDEN", jobType="GATE"
    )
    return RunEvent(
        eventType=RunState(kind),
        eventTime=datetime.now(UTC).isoformat(),
        run=Run(run.run, {**_parent_facets(parent, root or parent), **facets}),
        job=Job(run.namespace, run.job, {"jobType": job_type}),
        inputs=inputs,
        outputs=outputs,
    )


def checked_table(workspace: Workspace, table: str, decision: Decision) -> InputDataset:
    """Return the table that was decided about, with its version and with what each expectation found.

    Without failing rows: a lineage service is no place for them.
    """
    result = result_of(workspace, table, decision)
    facets: dict[str, InputDatasetFacet] = {}
    if result is not None:
        facets["dataQualityAssertions"] = data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet(
            [_assertion(one) for one in result.expectations]
        )
    if decision.rows is not None:
        facets["dataQualityMetrics"] = data_quality_metrics_input_dataset.DataQualityMetricsInputDatasetFacet(
            columnMetrics={}, rowCount=decision.rows
        )
    namespace, name = _place(workspace, table_key(table))
    return InputDataset(namespace, name, facets=_version(decision.version), inputFacets=facets)


def published_table(workspace: Workspace, table: str, decision: Decision) -> list[OutputDataset]:
    """Return the published table with its newest version; nothing if the decision published nothing."""
    if decision.verdict is Verdict.HELD:
        return []
    namespace, name = _place(workspace, published_key(table))
    return [OutputDataset(namespace, name, facets=_version(PublishedLog(workspace, table).at().number))]


def tag_facets(decision: Decision) -> dict[str, RunFacet]:
    """Return what the specification has no field for: the verdict, who decided, the suite and the check's report."""
    found = {"decision": decision.verdict.value, "by": decision.by, "suite": decision.suite, "check": decision.run}
    tags = [tags_run.TagsRunFacetFields(key, value, "STREAMWARDEN") for key, value in found.items() if value]
    return {"tags": tags_run.TagsRunFacet(tags)}


def error_facets(error: BaseException) -> dict[str, RunFacet]:
    """Return the error that ended a run."""
    text = str(error) if isinstance(error, StreamwardenError) else redacted(f"{type(error).__name__}: {error}")
    return {"errorMessage": error_message_run.ErrorMessageRunFacet(message=text, programmingLanguage="PYTHON")}


def _parent_facets(parent: RunOf | None, root: RunOf | None) -> dict[str, RunFacet]:
    if parent is None or root is None:
        return {}
    first = parent_run.Root(parent_run.RootRun(root.run), parent_run.RootJob(root.namespace, root.job))
    run, job = parent_run.Run(parent.run), parent_run.Job(parent.namespace, parent.job)
    return {"parent": parent_run.ParentRunFacet(run, job, first)}


def _assertion(found: ExpectationResult) -> data_quality_assertions_dataset.Assertion:
    return data_quality_assertions_dataset.Assertion(
        assertion=found.type,
        success=found.success,
        # The specification has one column; those of a rule about several are among its arguments.
        column=found.columns[0] if len(found.columns) == 1 else None,
        severity=_SEVERITY.get(found.severity, found.severity),
        name=found.id,
        description=found.description,
        actual=found.finding(),
        params={name: value for name, value in found.arguments.items() if value is not None},
    )


def _version(number: int) -> dict[str, DatasetFacet]:
    return {"version": dataset_version_dataset.DatasetVersionDatasetFacet(str(number))}


def _place(workspace: Workspace, key: str) -> tuple[str, str]:
    """Return namespace and name of a table's folder, by OpenLineage's conventions."""
    uri = workspace.uri(key)
    if "://" not in uri:
        return "file", uri
    place = urlsplit(uri)
    # Spark's scheme is s3a.
    return f"s3://{place.netloc}", place.path.lstrip("/")
