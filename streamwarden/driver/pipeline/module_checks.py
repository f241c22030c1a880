"""Check the parts of a job's module, before Spark starts. Each error names file and line, or file and field."""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType

from pydantic import BaseModel
from pyspark.sql.types import StructType

from streamwarden.driver.causes import authors_place
from streamwarden.driver.job_api import StreamingJob
from streamwarden.errors import StreamwardenError
from streamwarden.model.kafka_spec import KafkaSinkSpec
from streamwarden.model.row_rules import quarantine_of
from streamwarden.model.spec import RULES_OUTPUT, JobSpec, SinkSpec
from streamwarden.store.module_text import ModuleText, did_you_mean, find_module, own_nodes, shown

__all__ = ["check_parts", "check_sinks", "import_error", "needed_columns"]


def import_error(spec: JobSpec, error: BaseException) -> StreamwardenError:
    """Return the error for a module that can't be imported: the YAML's field if there is none, else file and line."""
    here = Path.cwd()
    if isinstance(error, ModuleNotFoundError) and f"{spec.module}.".startswith(f"{error.name}."):
        return _not_there(spec, here)
    module = find_module(spec.module, here)
    file = shown(module, here) if module is not None else spec.module
    if isinstance(error, SyntaxError) and error.filename:
        place = f"{shown(error.filename, here)}:{error.lineno or 1}"
        what, remedy = f"{type(error).__name__}: {error.msg}", "Correct this line, or one just above it."
    else:
        place = authors_place(error, str(module)) or file
        words = str(error).strip().partition("\n")[0]
        what = f"{type(error).__name__}: {words}" if words else type(error).__name__
        top = spec.module.split(".", 1)[0]
        remedy = f'Correct this line. For the whole traceback: `python -c "import {spec.module}"` in {here}.'
        if isinstance(error, ModuleNotFoundError) and error.name:
            beside = module.with_name(f"{error.name}.py") if module is not None else here
            remedy = f"Install it for {sys.executable} wherever drivers run, or correct the import."
            if beside.is_file():
                remedy = f"Import it by its package: {spec.module.rpartition('.')[0] or top}.{error.name}."
    return StreamwardenError("JOB_MODULE_INVALID", f"{place}: {what} (`module` of {_yaml(spec)})", remedy=remedy)


def check_parts(spec: JobSpec, module: ModuleType, text: ModuleText | None) -> None:
    """Reject a module that lacks a part, or in which one is of another kind.

    Raises
    ------
    StreamwardenError
        ``JOB_MODULE_INVALID``.
    """

    def invalid(name: str, what: str, remedy: str) -> StreamwardenError:
        place = text.place_of(name) if text is not None else spec.module
        return StreamwardenError("JOB_MODULE_INVALID", f"{place}: {name}: {what}", remedy=remedy)

    for name in ("VERSION", "OUTPUTS", "transform"):
        if not hasattr(module, name):
            near = text.alike(name) if text is not None else ""
            raise invalid(name, f"is missing{near}", f"The module of a job has {name}: docs/jobs.md has an example.")
    version, outputs, mode = module.VERSION, module.OUTPUTS, getattr(module, "OUTPUT_MODE", "update")
    if not isinstance(version, int) or isinstance(version, bool):
        raise invalid("VERSION", f"is {version!r}", "Write a whole number: VERSION = 1.")
    if not isinstance(outputs, Mapping) or not outputs or not _are_schemas(outputs):
        example = 'OUTPUTS = {"main": StructType([…])}'
        raise invalid("OUTPUTS", "is no mapping of names to a StructType each", f"Write it like {example}.")
    for output, schema in outputs.items():
        twice = [name for name, times in Counter(one.lower() for one in schema.fieldNames()).items() if times > 1]
        if twice:
            remedy = "Give each column of an output a name of its own; Delta ignores case."
            raise invalid("OUTPUTS", f"output {output} has column {twice[0]} twice", remedy)
    if mode not in ("update", "append"):
        raise invalid("OUTPUT_MODE", f"is {mode!r}", "Write update, or append for joins of streams.")
    options = getattr(module, "Options", None)
    if options is not None and not (isinstance(options, type) and issubclass(options, BaseModel)):
        raise invalid(
            "Options", "is no pydantic model", "Write class Options(JobOptions): of streamwarden.driver.job_api."
        )
    given = "sources" if spec.sources is not None else "source"
    _check_call(module.transform, 2, f"transform({given}, settings)", functools.partial(invalid, "transform"))
    for name in ("outputs", "refused_files"):
        function = getattr(module, name, None)
        if function is not None:
            _check_call(function, 1, f"{name}(batch)", functools.partial(invalid, name))


def check_sinks(spec: JobSpec, job: StreamingJob, text: ModuleText | None) -> None:
    """Reject sinks with an output or a column that the module does not have.

    Raises
    ------
    StreamwardenError
        ``JOB_MODULE_INVALID``, with file and field.
    """
    place = text.place_of("OUTPUTS") if text is not None else spec.module
    ruled = {quarantine_of(sink.table) for sink in spec.delta_sinks if sink.row_rules}
    for sink in spec.sinks:
        field = f"{_yaml(spec)}: sinks.{sink.topic if isinstance(sink, KafkaSinkSpec) else sink.table}"
        if sink.output.startswith(RULES_OUTPUT):
            continue
        if sink.output not in job.OUTPUTS:
            near = did_you_mean(sink.output, job.OUTPUTS)
            raise StreamwardenError(
                "JOB_MODULE_INVALID",
                f"{field}.output: OUTPUTS ({place}) has no output {sink.output!r}, it has {_names(job.OUTPUTS)}{near}",
                remedy="Set `output` of the sink to an output of the module; without it, it is main.",
            )
        by_rules = isinstance(sink, SinkSpec) and sink.table in ruled
        if sink.output != "main" and not hasattr(job, "outputs") and not by_rules:
            raise StreamwardenError(
                "JOB_MODULE_INVALID",
                f"{field}.output: nothing writes {sink.output}: the module has no function outputs(batch), so all rows"
                " are of output main",
                remedy="Add outputs(batch) to the module, as in docs/jobs.md, or remove the sink.",
            )
        columns = job.OUTPUTS[sink.output].fieldNames()
        for name, given in _columns_of(sink).items():
            unknown = [one for one in given if one not in columns]
            if unknown:
                raise StreamwardenError(
                    "JOB_MODULE_INVALID",
                    f"{field}.{name}: output {sink.output} ({place}) has no column {unknown[0]}, it has"
                    f" {_names(columns)}{did_you_mean(unknown[0], columns)}",
                    remedy="Name a column of the output, or add it to OUTPUTS and to what transform returns.",
                )
    _check_split(job, text)


def _not_there(spec: JobSpec, here: Path) -> StreamwardenError:
    dotted = spec.module.replace("/", ".").removesuffix(".py")
    package = dotted.rpartition(".")[0]
    folder = here / package.replace(".", "/")
    known = [f"{package}.{one.stem}".lstrip(".") for one in sorted(folder.glob("*.py")) if one.stem != "__init__"]
    what = f"{_yaml(spec)}: module: there is no module {spec.module}"
    remedy = f"Correct `module`, such as {package or 'spark_jobs'}.NAME for a file NAME.py; it is imported from {here}."
    if spec.module in known:
        # A folder without this file is no package if another place has a package of its name.
        top = importlib.util.find_spec(spec.module.split(".", 1)[0])
        what += f", though {shown(folder / dotted.rpartition('.')[2], here)}.py exists: Python takes the package"
        what += f" {top.name} from {Path(top.origin).parent}" if top is not None and top.origin else " from elsewhere"
        remedy = f"Create an empty file {shown(folder / '__init__.py', here)}."
    else:
        what += did_you_mean(dotted, known)
    return StreamwardenError("JOB_MODULE_INVALID", what, remedy=remedy)


def _are_schemas(outputs: Mapping[object, object]) -> bool:
    return all(isinstance(name, str) and isinstance(one, StructType) for name, one in outputs.items())


def _check_call(
    function: object, arguments: int, wanted: str, invalid: Callable[[str, str], StreamwardenError]
) -> None:
    if not callable(function):
        raise invalid("is no function", f"Write def {wanted}.")
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError as error:
        raise invalid(f"is called as {wanted}: {error}", f"Write def {wanted}.") from error
    except ValueError:
        # A builtin that shows no signature.
        return


def needed_columns(sink: SinkSpec | KafkaSinkSpec) -> set[str]:
    """Return the columns without which a sink can't write a row."""
    return {column for columns in _columns_of(sink).values() for column in columns}


def _columns_of(sink: SinkSpec | KafkaSinkSpec) -> dict[str, Iterable[str]]:
    """Return the columns that a sink names, by field."""
    found: dict[str, Iterable[str]] = {"keys": sink.keys}
    if isinstance(sink, SinkSpec):
        final = sink.final_when_passed
        found |= {"first_by": sink.first_by, "partition_by": sink.partition_by}
        found["final_when_passed"] = [final] if final is not None else []
    return found


def _check_split(job: StreamingJob, text: ModuleText | None) -> None:
    """Reject an output that ``outputs`` returns by a literal name and that OUTPUTS does not have."""
    function = text.function("outputs") if text is not None else None
    for node in own_nodes(function.body) if function is not None else ():
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Dict):
            keys = [(one.value, one.lineno) for one in node.value.keys if isinstance(one, ast.Constant)]
            for name, line in keys:
                if name not in job.OUTPUTS:
                    assert text is not None
                    raise StreamwardenError(
                        "JOB_MODULE_INVALID",
                        f"{text.at(line)}: outputs returns {name!r}, and OUTPUTS has {_names(job.OUTPUTS)}"
                        f"{did_you_mean(str(name), job.OUTPUTS)}",
                        remedy="Correct the name here or in OUTPUTS.",
                    )


def _names(names: Iterable[str]) -> str:
    return ", ".join(names)


def _yaml(spec: JobSpec) -> str:
    return f"config/jobs/{spec.name}.yaml"
