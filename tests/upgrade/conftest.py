from __future__ import annotations

from tests.integration.conftest import place

__all__ = ["place"]
