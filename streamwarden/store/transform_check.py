"""Find faults of a module's ``transform`` in its text, before a driver and its JVM start.

Reports only what Spark or the driver would refuse for certain: statements that run in any case, and names and arguments
that are literals. Of all else, the driver finds the faults when it calls ``transform``.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence

from streamwarden.errors import StreamwardenError
from streamwarden.model.spec import JobSpec
from streamwarden.store.module_text import ModuleText, did_you_mean, own_nodes

__all__ = ["check_transform", "joins", "names_read"]

_OUTER = frozenset(("outer", "full", "fullouter", "left", "leftouter", "right", "rightouter", "semi", "leftsemi"))

# A stream stays a stream by them, and gets no watermark.
_KEEP = {"alias", "distinct", "drop", "dropDuplicates", "dropna", "fillna", "filter", "hint", "repartition", "select"}
_KEEP |= {"selectExpr", "toDF", "where", "withColumn", "withColumnRenamed", "withColumns", "withColumnsRenamed"}
_KNOWN = frozenset((*sys.stdlib_module_names, "pyspark", "pydantic", "streamwarden")) - {"importlib"}
"""Packages that call no ``withWatermark`` for a job."""


def check_transform(spec: JobSpec, text: ModuleText, mode: str | None = None) -> None:
    """Reject a job whose ``transform`` can't work, as far as its text shows that for certain.

    Parameters
    ----------
    spec, text
        The job.
    mode
        The module's output mode; None if it is not known.

    Raises
    ------
    StreamwardenError
        ``JOB_MODULE_INVALID``, ``CONFIG_INVALID`` or ``JOIN_WITHOUT_WATERMARK``, each with file and line.
    """
    transform = text.function("transform")
    if transform is None:
        return
    if not any(isinstance(node, ast.Return) and node.value is not None for node in own_nodes(transform.body)):
        raise StreamwardenError(
            "JOB_MODULE_INVALID",
            f"{text.at(transform.lineno)}: transform returns nothing",
            remedy="End it with `return` and the DataFrame of the query.",
        )
    names = [one.arg for one in (*transform.args.posonlyargs, *transform.args.args)]
    if len(names) < 2:
        # What calls it says so.
        return
    source, settings = names[:2]
    sure = _Sure(transform)
    if settings not in sure.assigned:
        _check_lookups(spec, text, sure, settings)
        _check_settings(spec, text, sure, settings)
    if spec.sources is None or source in sure.assigned:
        return
    _check_names(spec, text, sure, transform, source)
    _check_watermarks(text, transform, source)
    _check_joins(text, sure, source, mode)


def names_read(text: ModuleText | None) -> list[str]:
    """Return the sources that ``transform`` reads by a literal name, in their order."""
    transform = text.function("transform") if text is not None else None
    if transform is None or not transform.args.args:
        return []
    return list(dict.fromkeys(name for name, _ in _literals(ast.walk(transform), transform.args.args[0].arg)))


def joins(text: ModuleText | None) -> list[int]:
    """Return the lines of the joins in a module that name their kind, as an outer join does."""
    nodes = ast.walk(text.tree) if text is not None else ()
    return sorted({node.lineno for node in nodes if isinstance(node, ast.Call) and _kind_given(node) is not None})


class _Sure:
    """What runs in any call of a function."""

    def __init__(self, function: ast.FunctionDef) -> None:
        self.statements: list[ast.stmt] = []
        self.expressions: list[ast.expr] = []
        self.assigned = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and _is_set(node)}
        for statement in function.body:
            self.statements.append(statement)
            match statement:
                case ast.If() | ast.While():
                    self.expressions.append(statement.test)
                case ast.For():
                    self.expressions.append(statement.iter)
                case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.Expr() | ast.Return():
                    self.expressions += [statement.value] if statement.value is not None else []
            # After it, nothing is sure: it may return. A raise ends the job, so what follows need not be excluded.
            if isinstance(statement, ast.Raise) or any(isinstance(one, ast.Return) for one in own_nodes([statement])):
                break

    def nodes(self) -> Iterator[ast.AST]:
        """Return the nodes that are evaluated in any case."""
        for expression in self.expressions:
            yield from _evaluated(expression)


def _evaluated(expression: ast.expr) -> Iterator[ast.AST]:
    """Return the nodes of an expression that are evaluated in any case."""
    left: list[ast.AST] = [expression]
    while left:
        node = left.pop()
        yield node
        match node:
            case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                continue
            case ast.IfExp():
                left.append(node.test)
            case ast.BoolOp():
                left.append(node.values[0])
            case ast.Compare():
                left += [node.comparators[0], node.left]
            case _:
                left += reversed(list(ast.iter_child_nodes(node)))


def _is_set(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store | ast.Del)


def _literals(nodes: Iterator[ast.AST], name: str, attribute: str | None = None) -> Iterator[tuple[str, int]]:
    """Return each literal key of ``name["key"]``, or of ``name.attribute["key"]``, with its line."""
    for node in nodes:
        if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Constant):
            continue
        of: ast.expr | None = node.value
        if attribute is not None:
            of = of.value if isinstance(of, ast.Attribute) and of.attr == attribute else None
        if isinstance(of, ast.Name) and of.id == name and isinstance(node.slice.value, str):
            yield node.slice.value, node.lineno


def _check_lookups(spec: JobSpec, text: ModuleText, sure: _Sure, settings: str) -> None:
    for name, line in _literals(sure.nodes(), settings, "lookups"):
        if name not in spec.lookups:
            raise _unknown(spec, text, line, f'{settings}.lookups["{name}"]', name, "lookups", list(spec.lookups))


def _check_settings(spec: JobSpec, text: ModuleText, sure: _Sure, settings: str) -> None:
    """Reject a job without a value that ``transform`` computes with."""
    missing = {"watermark": "watermark"} if spec.watermark is None else {}
    missing |= {"ttl": "state.ttl"} if spec.state.ttl is None else {}
    for node in sure.nodes():
        match node:
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id=of), attr=name)) if (
                of == settings and name in missing
            ):
                raise StreamwardenError(
                    "CONFIG_INVALID",
                    f"config/jobs/{spec.name}.yaml: {missing[name]}: is missing, and transform uses it"
                    f" ({text.at(node.lineno)})",
                    remedy=f"Set `{missing[name]}`, such as 10m: docs/configuration.md describes it.",
                )


def _check_names(spec: JobSpec, text: ModuleText, sure: _Sure, transform: ast.FunctionDef, source: str) -> None:
    assert spec.sources is not None
    for name, line in _literals(sure.nodes(), source):
        if name not in spec.sources:
            raise _unknown(spec, text, line, f'{source}["{name}"]', name, "sources", list(spec.sources))
    read = [name for name, _ in _literals(ast.walk(transform), source)]
    uses = [node for node in ast.walk(transform) if isinstance(node, ast.Name) and node.id == source]
    unread = [name for name in spec.sources if name not in read]
    if unread and len(uses) == len(read):
        raise StreamwardenError(
            "JOB_MODULE_INVALID",
            f"{text.at(transform.lineno)}: transform does not read {' and '.join(unread)}, which"
            f" config/jobs/{spec.name}.yaml has under sources",
            remedy=f'Read it as {source}["{unread[0]}"], or remove it from sources and from SOURCES of the module.',
        )


def _unknown(
    spec: JobSpec, text: ModuleText, line: int, expression: str, name: str, field: str, names: Sequence[str]
) -> StreamwardenError:
    known = " and ".join(names) or "none"
    return StreamwardenError(
        "JOB_MODULE_INVALID",
        f"{text.at(line)}: transform reads {expression}, and {field} of config/jobs/{spec.name}.yaml has {known}"
        f"{did_you_mean(name, names)}",
        remedy=f"Correct the name in this line, or in {field} of the YAML"
        + (" and in SOURCES of the module." if field == "sources" else "."),
    )


def _check_watermarks(text: ModuleText, transform: ast.FunctionDef, source: str) -> None:
    """Reject a column of SOURCES that no ``withWatermark`` names, unless code elsewhere may call it."""
    declared = text.constant("SOURCES")
    named = _watermarked(text)
    if named is None or not isinstance(declared, Mapping):
        return
    lines = dict(reversed(list(_literals(ast.walk(transform), source))))
    for name, column in declared.items():
        if isinstance(column, str) and column not in named:
            place = text.at(lines.get(name, transform.lineno))
            raise StreamwardenError(
                "JOB_MODULE_INVALID",
                f"{place}: transform does not call withWatermark on {column} of {name}, though SOURCES"
                f" ({text.place_of('SOURCES')}) names this column",
                remedy=f'Call {source}["{name}"].withWatermark("{column}", …) before the join. If none is needed, set'
                f" {name} to None in SOURCES.",
            )


def _watermarked(text: ModuleText) -> set[str] | None:
    """Return the columns that a module gives to ``withWatermark``; None if its text does not show all of them."""
    named, calls = set(), 0
    for node in ast.walk(text.tree):
        match node:
            case ast.Import():
                known = all(one.name.split(".")[0] in _KNOWN for one in node.names)
            case ast.ImportFrom():
                known = node.level == 0 and (node.module or "").split(".")[0] in _KNOWN
            case ast.Attribute(attr="withWatermark"):
                known, calls = True, calls - 1
            # A statement of SQL has a clause for it.
            case ast.Attribute(attr="sql") | ast.Name(id="getattr" | "exec" | "eval") | ast.Constant("withWatermark"):
                known = False
            case ast.Call(func=ast.Attribute(attr="withWatermark"), args=[ast.Constant(value=str(column)), *_]):
                known, calls = True, calls + 1
                named.add(column)
            case _:
                known = True
        if not known:
            return None
    return named if calls == 0 else None


_Stream = tuple[tuple[str, ...], bool]
"""The sources of a DataFrame, and whether one of them has got a watermark."""


def _check_joins(text: ModuleText, sure: _Sure, source: str, mode: str | None) -> None:
    """Reject an outer join of two sources of which neither has a watermark, or in another output mode than append."""
    known: dict[str, _Stream | None] = {}

    def stream(node: ast.AST) -> _Stream | None:
        """Return None for all that may be something else than a stream of the job's sources."""
        match node:
            case ast.Name():
                return known.get(node.id)
            case ast.Subscript(value=ast.Name(id=of), slice=ast.Constant(value=str(name))) if of == source:
                return (name,), False
            case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in _KEEP:
                return stream(value)
            case ast.Call(func=ast.Attribute(value=value, attr="withWatermark")):
                found = stream(value)
                return (found[0], True) if found is not None else None
            case ast.Call(func=ast.Attribute(value=value, attr="join"), args=[other, *_]):
                left, right = stream(value), stream(other)
                if left is None or right is None:
                    return None
                return ((*left[0], *right[0]), left[1] or right[1])
        return None

    for statement in sure.statements:
        value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign | ast.Return) else None
        for node in _evaluated(value) if value is not None else ():
            if not isinstance(node, ast.Call) or _kind(node) not in _OUTER:
                continue
            both = stream(node)
            what = f"{text.at(node.lineno)}: an outer join of {' and '.join(both[0])}" if both is not None else ""
            if both is not None and not both[1]:
                what += ", and transform calls withWatermark on neither"
                raise StreamwardenError("JOIN_WITHOUT_WATERMARK", what)
            if both is not None and mode not in (None, "append"):
                what += f", and OUTPUT_MODE is {mode}{text.alike('OUTPUT_MODE')}"
                remedy = 'Add OUTPUT_MODE = "append" to the module: in this mode only, Spark joins streams so.'
                raise StreamwardenError("JOB_MODULE_INVALID", what, remedy=remedy)
        target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
        found = stream(value) if value is not None and isinstance(target, ast.Name) else None
        # A part of a tuple is not known, nor what is assigned in a branch.
        known.update({one.id: None for one in ast.walk(statement) if isinstance(one, ast.Name) and _is_set(one)})
        if isinstance(target, ast.Name):
            known[target.id] = found


def _kind(call: ast.Call) -> str | None:
    """Return the kind of a join as Spark compares it: lower case, without underscores; None if it is no literal."""
    given = _kind_given(call)
    if isinstance(given, ast.Constant) and isinstance(given.value, str):
        return given.value.lower().replace("_", "")
    return None


def _kind_given(call: ast.Call) -> ast.expr | None:
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "join":
        return None
    return call.args[2] if len(call.args) > 2 else next((one.value for one in call.keywords if one.arg == "how"), None)
