"""Read a job's module as text: its file, its literals and its functions. Imports nothing, and needs no Spark."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.machinery import PathFinder
from pathlib import Path

from streamwarden.errors import StreamwardenError

__all__ = ["ModuleText", "did_you_mean", "find_module", "module_text", "nearest", "own_nodes", "shown", "text_of"]


@dataclass(frozen=True)
class ModuleText:
    """A module that was read and not imported.

    Parameters
    ----------
    file
        Its file, as messages name it.
    tree
        Its syntax.
    """

    file: str
    tree: ast.Module

    def at(self, line: int) -> str:
        """Return a place in the module: ``spark_jobs/orders_paid.py:17``."""
        return f"{self.file}:{line}"

    def assigned(self, name: str) -> ast.expr | None:
        """Return the expression that the module assigns to a name last; None if there is none."""
        value: ast.expr | None = None
        for node in self.tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and name in _targets(node):
                value = node.value
        return value

    def constant(self, name: str) -> object:
        """Return a literal that the module assigns to a name; None if there is none, or if it may be changed later."""
        value = self.assigned(name) if not self._is_changed(name) else None
        try:
            return ast.literal_eval(value) if value is not None else None
        except (ValueError, TypeError):
            return None

    def place_of(self, name: str) -> str:
        """Return the place where the module defines a name, or its file if the text does not show that."""
        line = self._lines().get(name)
        return self.at(line) if line is not None else self.file

    def alike(self, name: str) -> str:
        """Return the end of a message about a missing name: the module's name that is most like it, and its place."""
        tops = self._lines()
        near = get_close_matches(name.lower(), [one.lower() for one in tops if one != name], n=1, cutoff=0.75)
        found = next((one for one in tops if near and one.lower() == near[0] and one != name), None)
        return f"; it has {found} ({self.at(tops[found])})" if found is not None else ""

    def _lines(self) -> dict[str, int]:
        """Return the names that the module defines by a statement of its own, each with its last line."""
        found = {node.name: node.lineno for node in self.tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        return found | {name: node.lineno for node in self.tree.body for name in _targets(node)}

    def function(self, name: str) -> ast.FunctionDef | None:
        """Return a function of the module, if its text is all that there is of it: defined once, and not decorated."""
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        defined = [one for one in own_nodes(self.tree.body) if isinstance(one, kinds) and one.name == name]
        found = defined[0] if len(defined) == 1 and defined[0] in self.tree.body else None
        if not isinstance(found, ast.FunctionDef) or found.decorator_list or self._is_changed(name):
            return None
        return found if self.assigned(name) is None else None

    def _is_changed(self, name: str) -> bool:
        """Return whether statements other than plain assignments may change a name of the module."""
        known = sum(name in _targets(node) for node in self.tree.body)
        for node in own_nodes(self.tree.body):
            match node:
                case ast.Name(id=of, ctx=ast.Store() | ast.Del()) if of == name:
                    known -= 1
                case ast.Subscript(value=ast.Name(id=of), ctx=ast.Store() | ast.Del()) if of == name:
                    return True
                case ast.Attribute(value=ast.Name(id=of), attr="update" | "pop" | "setdefault" | "clear") if of == name:
                    return True
        return known != 0


def _targets(node: ast.stmt) -> list[str]:
    """Return the names that an assignment assigns to."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def own_nodes(statements: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """Return the nodes of statements, without those within functions and classes that they define."""
    left: list[ast.AST] = list(statements)
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            left += ast.iter_child_nodes(node)


def find_module(module: str, folder: Path) -> Path | None:
    """Return the file of a module as a process finds it whose working directory is `folder`; None if it has none.

    Unlike :func:`importlib.util.find_spec`, it imports no package on the way.
    """
    path: list[str] | None = [str(folder), *sys.path]
    parts, found = module.split("."), None
    for depth in range(len(parts)):
        found = PathFinder.find_spec(".".join(parts[: depth + 1]), path) if path is not None else None
        if found is None:
            return None
        places = found.submodule_search_locations
        path = list(places) if places is not None else None
    return Path(found.origin) if found is not None and found.origin is not None and found.has_location else None


def module_text(module: str, folder: Path) -> ModuleText | None:
    """Return the text of a module as :func:`find_module` finds it; None if there is no such file of Python.

    Raises
    ------
    StreamwardenError
        ``JOB_MODULE_INVALID`` with file and line for a file that isn't Python.
    """
    path = find_module(module, folder)
    return text_of(path, folder) if path is not None and path.suffix == ".py" else None


def text_of(path: Path, folder: Path) -> ModuleText:
    """Return the text of a file; see :func:`module_text`."""
    file = shown(path, folder)
    try:
        return ModuleText(file, ast.parse(path.read_bytes()))
    except SyntaxError as error:
        raise StreamwardenError(
            "JOB_MODULE_INVALID",
            f"{file}:{error.lineno or 1}: {type(error).__name__}: {error.msg}",
            remedy="Correct this line, or one just above it; it is no Python.",
        ) from error
    except ValueError as error:
        raise StreamwardenError("JOB_MODULE_INVALID", f"{file}: {error}") from error


def shown(path: Path | str, folder: Path) -> str:
    """Return a file as messages name it: relative to the project's folder, if it is in there."""
    path = Path(path)
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the name that is most like a misspelt one; None if none is."""
    return next(iter(get_close_matches(name, list(names), n=1)), None)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a question that ends a message about a misspelt name; empty if no name is like it."""
    near = nearest(name, names)
    return f"; did you mean {near}?" if near is not None else ""
