"""No module but store/layout.py builds or parses a key of ROOT."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

LIBRARY = Path(__file__).resolve().parents[3] / "streamwarden"
LAYOUT = LIBRARY / "store" / "layout.py"

FOLDERS = ("arrivals", "checkpoints", "control", "logs", "quality", "savepoints", "scratch", "tables")
BELOW = re.compile(rf"(?:^|[^\w.])({'|'.join(FOLDERS)}|_delta_log)/|(_delta_log)$")
GENERATION = re.compile(r"g\{[^}]+:06d?\}")
# Their first argument is a key.
OPENERS = {"folders", "list", "uri", "walk"}

OTHERS = {
    # Names inside a RocksDB checkpoint.
    ("formats/checkpoint_files.py", "logs"),
    # Airflow's API, and AIRFLOW_HOME.
    ("devserver/rest.py", "logs"),
    ("devserver/standalone.py", "logs"),
    # A table in a temporary folder.
    ("formats/delta_checkpoint.py", "_delta_log"),
    # Addresses of pages.
    ("airflow/pages/quality_routes.py", "quality"),
    # Texts for people.
    ("errors.py", "logs"),
    *(("model/profile.py", folder) for folder in FOLDERS if folder not in ("arrivals", "savepoints")),
}
"""What only looks like a key."""


def keys_in(source: str) -> Iterator[str]:
    """Yield the folders of ROOT, and other parts of keys, that a module names; docstrings excepted."""
    tree = ast.parse(source)
    # A text that is a statement of its own documents what is around it.
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        whole: ast.expr | None = None
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            yield from (found[1] or found[2] for found in BELOW.finditer(node.value))
        elif isinstance(node, ast.JoinedStr) and GENERATION.search(ast.unparse(node)):
            yield "generation"
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            whole = node.right
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in OPENERS:
            whole = node.args[0] if node.args else None
        if isinstance(whole, ast.Constant) and whole.value in FOLDERS:
            yield whole.value


def test_only_the_layout_names_a_key() -> None:
    found = {
        (path.relative_to(LIBRARY).as_posix(), key)
        for path in LIBRARY.rglob("*.py")
        if path != LAYOUT
        for key in keys_in(path.read_text(encoding="utf-8"))
    }
    assert found == OTHERS


@pytest.mark.parametrize(
    "line",
    [
        'f"tables/{table}"',
        'f"{base}/tables/{table}"',
        'f"{job}: tables/{table} has no log"',
        'f"{table}/_delta_log"',
        'f"x/{job}/g{generation:06d}"',
        'f"g{reference.generation:06}.json"',
        'r"savepoints/[^/]+"',
        'key.startswith("control/")',
        'files.folders("control")',
        'root / "quality" / run',
    ],
)
def test_a_key_is_found(line: str) -> None:
    assert list(keys_in(f"x = {line}"))


@pytest.mark.parametrize(
    "line", ['"""In checkpoints/JOB."""', 'x = spec["savepoints"]', 'x = {"logs": 1}', 'x = "import/logs.txt"']
)
def test_another_text_is_none(line: str) -> None:
    assert list(keys_in(line)) == []
