"""Pages that are made from the code say what the code says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from streamwarden.errors import CATALOGUE

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]


def load(script: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(script, ROOT / "scripts" / f"{script}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("script", ["make_errors_md", "make_configuration_md"])
def test_page_is_up_to_date(script: str) -> None:
    module = load(script)
    written = module.TARGET.read_text(encoding="utf-8")
    assert written == module.render(), f"run: python scripts/{script}.py"


def test_every_error_has_a_section() -> None:
    headings = re.findall(r"^## (\w+)$", (ROOT / "docs/errors.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == sorted(CATALOGUE)


def test_every_environment_variable_is_listed() -> None:
    listed = set(load("make_configuration_md").ENVIRONMENT)
    used = {
        name
        for folder in ("streamwarden", "dags")
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r"\bSTREAMWARDEN_[A-Z][A-Z_]*[A-Z]\b", path.read_text(encoding="utf-8"))
    }
    assert used == listed


def test_remedies_name_pages_that_exist() -> None:
    named = {page for kind in CATALOGUE.values() for page in re.findall(r"docs/\w+\.md", kind.remedy)}
    assert [page for page in sorted(named) if not (ROOT / page).is_file()] == []
