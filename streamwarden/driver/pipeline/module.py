"""Load a job's module and check its interface."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Mapping
from typing import cast

from pydantic import BaseModel, ValidationError
from pyspark.sql import DataFrame

from streamwarden.driver.job_api import JobSettings, StreamingJob
from streamwarden.errors import StreamwardenError
from streamwarden.model.kafka_spec import KafkaSinkSpec
from streamwarden.model.spec import RULES_OUTPUT, JobSpec, SinkSpec
from streamwarden.store.config import describe_validation
from streamwarden.store.declared_sources import check_declared_sources

__all__ = ["load_module", "output_mode", "settings_for", "split_outputs"]


def load_module(spec: JobSpec) -> StreamingJob:
    """Import a job's module.

    Raises
    ------
    StreamwardenError
        ``JOB_MODULE_INVALID`` if it can't be imported, lacks a part, or lacks the output that a sink names. For the
        sources, see :func:`~streamwarden.store.declared_sources.check_declared_sources`.
    """
    try:
        module = importlib.import_module(spec.module)
    except Exception as error:
        trace = traceback.format_exc(limit=-5)
        raise StreamwardenError(
            "JOB_MODULE_INVALID", f"{spec.name}: importing {spec.module}: {error}\n{trace}"
        ) from error
    missing = [name for name in ("VERSION", "OUTPUTS", "transform") if not hasattr(module, name)]
    if missing:
        raise StreamwardenError("JOB_MODULE_INVALID", f"{spec.name}: {spec.module} has no {', '.join(missing)}")
    job = cast(StreamingJob, module)
    check_declared_sources(spec, getattr(job, "SOURCES", None))
    for sink in spec.sinks:
        name, named = (f"topic {sink.topic}" if isinstance(sink, KafkaSinkSpec) else sink.table), [*sink.keys]
        if sink.output.startswith(RULES_OUTPUT):
            continue
        if sink.output not in job.OUTPUTS:
            known = ", ".join(job.OUTPUTS)
            raise StreamwardenError(
                "JOB_MODULE_INVALID", f"{spec.name}: sink {name}: no output {sink.output!r} (it has: {known})"
            )
        if isinstance(sink, SinkSpec):
            named += [*sink.first_by, *sink.partition_by, *filter(None, [sink.final_when_passed])]
        unknown = sorted(set(named) - set(job.OUTPUTS[sink.output].fieldNames()))
        if unknown:
            raise StreamwardenError(
                "JOB_MODULE_INVALID", f"{spec.name}: sink {name}: no column {', '.join(unknown)} in its output"
            )
    if output_mode(job) not in ("update", "append"):
        what = f"{spec.name}: {spec.module}: OUTPUT_MODE is {output_mode(job)!r}, neither update nor append"
        raise StreamwardenError("JOB_MODULE_INVALID", what)
    return job


def settings_for(spec: JobSpec, job: StreamingJob) -> JobSettings:
    """Validate a spec's options with the module's ``Options``.

    Raises
    ------
    StreamwardenError
        ``CONFIG_INVALID`` naming job and option.
    """
    model: type[BaseModel] | None = getattr(job, "Options", None)
    if model is None:
        if spec.options:
            raise StreamwardenError("CONFIG_INVALID", f"{spec.name}: options: {spec.module} takes none")
        return JobSettings(spec.watermark, spec.state.ttl, None, spec.state.buckets)
    try:
        options = model.model_validate(spec.options)
    except ValidationError as error:
        raise StreamwardenError("CONFIG_INVALID", f"{spec.name}: options: {describe_validation(error)}") from error
    return JobSettings(spec.watermark, spec.state.ttl, options, spec.state.buckets)


def output_mode(job: StreamingJob) -> str:
    """Return a module's ``OUTPUT_MODE``; applies the default."""
    return str(getattr(job, "OUTPUT_MODE", "update"))


def split_outputs(job: StreamingJob, batch: DataFrame) -> Mapping[str, DataFrame]:
    """Return a batch's rows by output name: from the module's ``outputs``, or all rows as ``main``."""
    split = getattr(job, "outputs", None)
    return cast("Mapping[str, DataFrame]", split(batch)) if split else {"main": batch}
