from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.integration.conftest import REPOSITORY, place
from tests.upgrade.installed import Installed

__all__ = ["place"]


@pytest.fixture(scope="module")
def new() -> Installed:
    return Installed(Path(sys.executable).with_name("streamwarden"), {"PYTHONPATH": str(REPOSITORY)})
