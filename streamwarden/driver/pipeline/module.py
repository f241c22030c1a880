"""Load a job's module and check its interface."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from pydantic import BaseModel, ValidationError
from pyspark.sql import DataFrame

from streamwarden.driver.job_api import JobSettings, StreamingJob
from streamwarden.driver.pipeline.module_checks import check_parts, check_sinks, import_error
from streamwarden.errors import StreamwardenError
from streamwarden.model.spec import JobSpec
from streamwarden.store.config import describe_validation
from streamwarden.store.declared_sources import check_declared_sources
from streamwarden.store.module_text import ModuleText, did_you_mean, text_of
from streamwarden.store.transform_check import check_transform

__all__ = ["load_module", "output_mode", "settings_for", "split_outputs", "text_of_job"]


def load_module(spec: JobSpec) -> StreamingJob:
    """Import a job's module.

    Raises
    ------
    StreamwardenError
        ``JOB_MODULE_INVALID`` if it can't be imported, lacks a part, or lacks what a sink names; and the errors of
        :func:`~streamwarden.store.declared_sources.check_declared_sources` and
        :func:`~streamwarden.store.transform_check.check_transform`.
    """
    try:
        module = importlib.import_module(spec.module)
    # A module may end the process that imports it, as a script does.
    except (Exception, SystemExit) as error:
        raise import_error(spec, error) from error
    job = cast(StreamingJob, module)
    text = text_of_job(job)
    check_parts(spec, module, text)
    check_declared_sources(spec, getattr(job, "SOURCES", None), text)
    if text is not None:
        check_transform(spec, text, output_mode(job))
    check_sinks(spec, job, text)
    return job


def text_of_job(job: StreamingJob) -> ModuleText | None:
    """Return the text of an imported module; None if it has no file of Python."""
    file = Path(getattr(job, "__file__", None) or "")
    return text_of(file, Path.cwd()) if file.suffix == ".py" and file.is_file() else None


def settings_for(spec: JobSpec, job: StreamingJob) -> JobSettings:
    """Validate a spec's options with the module's ``Options``.

    Raises
    ------
    StreamwardenError
        ``CONFIG_INVALID`` naming file and option.
    """
    field = f"config/jobs/{spec.name}.yaml: options"
    model: type[BaseModel] | None = getattr(job, "Options", None)
    if model is None:
        if spec.options:
            raise StreamwardenError("CONFIG_INVALID", f"{field}: {spec.module} takes none")
        return JobSettings(spec.watermark, spec.state.ttl, None, spec.state.buckets)
    try:
        options = model.model_validate(spec.options)
    except ValidationError as error:
        raise StreamwardenError("CONFIG_INVALID", f"{field}: {describe_validation(error)}") from error
    return JobSettings(spec.watermark, spec.state.ttl, options, spec.state.buckets)


def output_mode(job: StreamingJob) -> str:
    """Return a module's ``OUTPUT_MODE``; applies the default."""
    return str(getattr(job, "OUTPUT_MODE", "update"))


def split_outputs(job: StreamingJob, batch: DataFrame) -> Mapping[str, DataFrame]:
    """Return a batch's rows by output name: from the module's ``outputs``, or all rows as ``main``.

    Raises
    ------
    StreamwardenError
        ``JOB_MODULE_INVALID`` for a name that OUTPUTS does not have, or if it returns no mapping.
    """
    split = getattr(job, "outputs", None)
    if split is None:
        return {"main": batch}
    found: object = split(batch)
    unknown = [name for name in found if name not in job.OUTPUTS] if isinstance(found, Mapping) else [found]
    if unknown:
        # Otherwise its rows would be in no table, and nobody would know.
        raise StreamwardenError(
            "JOB_MODULE_INVALID",
            f"outputs(batch) returned {unknown[0]!r}, and OUTPUTS has {', '.join(job.OUTPUTS)}"
            f"{did_you_mean(str(unknown[0]), job.OUTPUTS)}",
            remedy="Let outputs return a mapping of DataFrames by the names in OUTPUTS, then deploy the job again.",
        )
    return cast("Mapping[str, DataFrame]", found)
