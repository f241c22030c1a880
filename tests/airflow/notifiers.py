"""Notifiers as a user would write them, that keep what they are given in files."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow.sdk import BaseNotifier


class FileNotifier(BaseNotifier):
    template_fields: Sequence[str] = ("text",)

    def __init__(self, *, path: str, text: str) -> None:
        super().__init__()
        self.path = path
        self.text = text

    def notify(self, context: Any) -> None:
        while Path(self.path).with_suffix(".hangs").exists():
            time.sleep(0.1)
        if Path(self.path).with_suffix(".broken").exists():
            raise ConnectionError("nobody there")
        with Path(self.path).open("a") as stream:
            stream.write(self.text + "\n")
