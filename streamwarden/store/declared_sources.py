"""Compare the sources that a job's module declares with those of its YAML: needs neither Spark nor an import."""

from __future__ import annotations

from collections.abc import Mapping

from streamwarden.errors import StreamwardenError
from streamwarden.model.spec import JobSpec

__all__ = ["check_declared_sources"]


def check_declared_sources(spec: JobSpec, declared: object) -> None:
    """Reject a job whose module and YAML name other sources, or whose watermark is missing.

    Parameters
    ----------
    spec
        The job.
    declared
        The module's ``SOURCES``: each source that ``transform`` reads, with the column that it gives to
        ``withWatermark``, or None. None if the module has no ``SOURCES``.

    Raises
    ------
    StreamwardenError
        ``CONFIG_INVALID`` with file and field, or ``JOB_MODULE_INVALID`` for ``SOURCES`` itself.
    """
    file = f"config/jobs/{spec.name}.yaml"
    if spec.sources is None:
        if declared is not None:
            raise StreamwardenError(
                "CONFIG_INVALID",
                f"{file}: source: {spec.module} reads several sources",
                remedy=f"Give `sources` with {_names(declared)} instead; docs/sources.md has an example.",
            )
        return
    if declared is None:
        columns = ", ".join(f'"{name}": "COLUMN"' for name in spec.sources)
        raise StreamwardenError(
            "JOB_MODULE_INVALID",
            f"{spec.module}: SOURCES: is missing, and {file} has sources",
            remedy=f"Add SOURCES = {{{columns}}}: the column of each source's withWatermark, or None.",
        )
    if not isinstance(declared, Mapping) or not all(
        isinstance(name, str) and (column is None or isinstance(column, str)) for name, column in declared.items()
    ):
        raise StreamwardenError(
            "JOB_MODULE_INVALID",
            f"{spec.module}: SOURCES: is no mapping of names to columns",
            remedy='Write it like SOURCES = {"trips": "picked_up_at", "zones": None}.',
        )
    _check_names(spec, declared, file)
    waited = {name: column for name, column in declared.items() if column is not None}
    if waited and spec.watermark is None:
        which = ", ".join(f"{name} ({column})" for name, column in waited.items())
        raise StreamwardenError(
            "CONFIG_INVALID",
            f"{file}: watermark: is missing, and {spec.module} needs it for {which}",
            remedy="Set `watermark`, such as 2h: how late a row may come. A join keeps rows in its state until then,"
            " and an outer join then writes those without a counterpart.",
        )


def _check_names(spec: JobSpec, declared: Mapping[str, str | None], file: str) -> None:
    assert spec.sources is not None
    unknown, missing = sorted(spec.sources.keys() - declared.keys()), sorted(declared.keys() - spec.sources.keys())
    if not unknown and not missing:
        return
    parts = [f"sources.{name}: {spec.module} reads no source of this name" for name in unknown]
    parts += [f"sources.{name}: is missing, and {spec.module} reads it" for name in missing]
    raise StreamwardenError(
        "CONFIG_INVALID",
        f"{file}: {'; '.join(parts)}",
        remedy=f"Name the sources as SOURCES of {spec.module} does: {_names(declared)}.",
    )


def _names(declared: object) -> str:
    return " and ".join(map(str, declared)) if isinstance(declared, Mapping) else "them"
