"""Compare the sources that a job's module declares with those of its YAML: needs neither Spark nor an import."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from streamwarden.errors import StreamwardenError
from streamwarden.model.spec import JobSpec
from streamwarden.store.module_text import ModuleText, did_you_mean, nearest
from streamwarden.store.transform_check import names_read

__all__ = ["check_declared_sources"]


def check_declared_sources(spec: JobSpec, declared: object, text: ModuleText | None = None) -> None:
    """Reject a job whose module and YAML name other sources, or whose watermark is missing.

    Parameters
    ----------
    spec
        The job.
    declared
        The module's ``SOURCES``: each source that ``transform`` reads, with the column that it gives to
        ``withWatermark``, or None. None if the module has no ``SOURCES``.
    text
        The module's text, from which messages name lines; None if it has none.

    Raises
    ------
    StreamwardenError
        ``CONFIG_INVALID`` with file and field, or ``JOB_MODULE_INVALID`` with file and line for ``SOURCES`` itself.
    """
    file = f"config/jobs/{spec.name}.yaml"
    place = text.place_of("SOURCES") if text is not None else spec.module
    if spec.sources is None:
        if declared is not None:
            raise StreamwardenError(
                "CONFIG_INVALID",
                f"{file}: source: the module reads several sources, by its SOURCES ({place})",
                remedy=f"Give `sources` with {_names(declared)} instead; docs/sources.md has an example.",
            )
        return
    if declared is None:
        columns = ", ".join(f'"{name}": "COLUMN"' for name in spec.sources)
        near = text.alike("SOURCES") if text is not None else ""
        raise StreamwardenError(
            "JOB_MODULE_INVALID",
            f"{place}: SOURCES: is missing, and {file} has sources{near}",
            remedy=f"Add SOURCES = {{{columns}}}: the column of each source's withWatermark, or None.",
        )
    if not isinstance(declared, Mapping) or not all(
        isinstance(name, str) and (column is None or isinstance(column, str)) for name, column in declared.items()
    ):
        raise StreamwardenError(
            "JOB_MODULE_INVALID",
            f"{place}: SOURCES: is no mapping of names to columns",
            remedy='Write it like SOURCES = {"trips": "picked_up_at", "zones": None}.',
        )
    if spec.sources.keys() != declared.keys():
        raise _other_names(declared.keys(), spec.sources.keys(), names_read(text), file, place)
    waited = {name: column for name, column in declared.items() if column is not None}
    if waited and spec.watermark is None:
        which = ", ".join(f"{name} ({column})" for name, column in waited.items())
        raise StreamwardenError(
            "CONFIG_INVALID",
            f"{file}: watermark: is missing, and SOURCES ({place}) needs it for {which}",
            remedy="Set `watermark`, such as 2h: how late a row may come. A join keeps rows in its state until then,"
            " and an outer join then writes those without a counterpart.",
        )


def _other_names(
    declared: Iterable[str], given: Iterable[str], read: Iterable[str], file: str, place: str
) -> StreamwardenError:
    """Return the error for names that differ: two of the three places outvote the third."""
    declared, given, read = list(declared), list(given), list(read)
    if set(read) == set(given):
        slips = "".join(did_you_mean(name, set(given) - set(declared)) for name in declared if name not in given)
        return StreamwardenError(
            "JOB_MODULE_INVALID",
            f"{place}: SOURCES has {_names(declared)}, but transform and sources of {file} have {_names(given)}{slips}",
            remedy="Correct SOURCES: it has the names by which transform reads its sources.",
        )
    missing, parts = [name for name in declared if name not in given], []
    for name in given:
        if name not in declared:
            near = nearest(name, missing)
            parts.append(f"sources.{name}: SOURCES ({place}) has no such name")
            if near is not None:
                parts[-1] += f", did you mean {near}?"
                missing.remove(near)
    parts += [f"sources.{name}: is missing, and SOURCES ({place}) has it" for name in missing]
    remedy = f"Name the sources as SOURCES of the module does: {_names(declared)}."
    if read and set(read) != set(declared):
        remedy = f"Use the same names in sources, in SOURCES and in transform, which reads {_names(read)}."
    return StreamwardenError("CONFIG_INVALID", f"{file}: {'; '.join(parts)}", remedy=remedy)


def _names(names: object) -> str:
    return " and ".join(map(str, names)) if isinstance(names, Iterable) and not isinstance(names, str) else "them"
