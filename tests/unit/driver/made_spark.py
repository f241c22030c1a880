"""A SPARK_HOME whose `spark-submit` notes what it is given, and answers as a test says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from streamwarden.driver import submission

_SPARK_SUBMIT = """\
#!/usr/bin/env python3
import json, os, stat, sys
given = sys.argv[sys.argv.index("--properties-file") + 1]
said = {
    "arguments": sys.argv[1:],
    "properties": open(given).read(),
    "mode": stat.S_IMODE(os.stat(given).st_mode),
    "conf": os.environ.get("HADOOP_CONF_DIR"),
}
json.dump(said, open(os.path.join(os.environ["SPARK_HOME"], "said.json"), "w"))
print(open(os.path.join(os.environ["SPARK_HOME"], "answer")).read())
sys.exit(int(open(os.path.join(os.environ["SPARK_HOME"], "code")).read()))
"""


class MadeSpark:
    """Takes the place of Spark in submissions.

    Parameters
    ----------
    settings
        What the job's session needs.
    """

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]) -> None:
        self._home = home
        (home / "bin").mkdir(parents=True)
        script = home / "bin" / "spark-submit"
        script.write_text(_SPARK_SUBMIT)
        script.chmod(0o755)
        self.answers("", 0)
        monkeypatch.setattr(submission, "find_java", lambda: "java")
        monkeypatch.setattr(submission, "spark_folder", lambda: home)
        monkeypatch.setattr(submission, "cluster_settings", lambda *_: settings)

    def answers(self, text: str, code: int) -> None:
        (self._home / "answer").write_text(text)
        (self._home / "code").write_text(str(code))

    @property
    def given(self) -> dict[str, Any]:
        """Arguments, properties, the mode of their file, and HADOOP_CONF_DIR."""
        found: dict[str, Any] = json.loads((self._home / "said.json").read_text())
        return found

    @property
    def properties(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.given["properties"].splitlines())
