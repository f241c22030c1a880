"""What is given to `spark-submit`, and what becomes of its refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from streamwarden.driver import submission
from streamwarden.driver.submission import main, submit
from streamwarden.driver.yarn_settings import yarn_settings
from streamwarden.errors import StreamwardenError
from streamwarden.model.record import utc_now
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import Launch
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from tests.batches import make_place

pytestmark = pytest.mark.unit

SPEC = JobSpec.model_validate(
    {
        "name": "lamp",
        "module": "m",
        "source": {"kind": "files", "path": "landing"},
        "sinks": [{"table": "lamp", "mode": "append"}],
    }
)
INCARNATION = "20260308T115900000z1a2b"
SECRET = "lamp oil with = and \\"

# It writes what it was given where the test looks.
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


class Spark:
    """A SPARK_HOME."""

    def __init__(self, home: Path) -> None:
        self.home = home
        (home / "bin").mkdir(parents=True)
        script = home / "bin" / "spark-submit"
        script.write_text(_SPARK_SUBMIT)
        script.chmod(0o755)
        self.answers("", 0)

    def answers(self, text: str, code: int) -> None:
        (self.home / "answer").write_text(text)
        (self.home / "code").write_text(str(code))

    @property
    def given(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.home / "said.json").read_text())
        return found


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spark:
    made = Spark(tmp_path / "spark")
    monkeypatch.setattr(submission, "find_java", lambda: "java")
    monkeypatch.setattr(submission, "spark_folder", lambda: made.home)
    monkeypatch.setattr(submission, "cluster_settings", lambda *_: {"spark.app.name": "streamwarden lamp"})
    return made


def place(folder: Path, **yarn: Any) -> Workspace:
    block = {"resource_managers": ["http://rm:8088"], **yarn}
    return make_place(folder, launcher="yarn", master="yarn", lease="60s", same_image=True, yarn=block)


def test_a_submission_names_no_secret_on_its_command_line(
    tmp_path: Path, spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAMP_SECRET", SECRET)
    made = place(tmp_path, environment=["LAMP_SECRET"], hadoop_conf="/etc/hadoop", config="./env/config")
    submit(made, "lamp", SPEC, INCARNATION)
    given = spark.given
    assert given["mode"] == 0o600 and given["conf"] == "/etc/hadoop"
    assert SECRET not in " ".join(given["arguments"])
    rows = dict(line.split("=", 1) for line in given["properties"].splitlines())
    assert rows["spark.yarn.appMasterEnv.LAMP_SECRET"] == rows["spark.executorEnv.LAMP_SECRET"]
    assert rows["spark.executorEnv.LAMP_SECRET"] == "lamp oil with = and \\\\"
    arguments = given["arguments"]
    script = next(number for number, one in enumerate(arguments) if one.endswith("cluster_entry.py"))
    assert arguments[:4] == ["--master", "yarn", "--deploy-mode", "cluster"]
    assert arguments[script + 1 :] == [
        *("--profile", "test", "--config", "./env/config", "--root", str(made.root)),
        *("--job", "lamp", "--incarnation", INCARNATION),
    ]
    # Removed with its secret.
    assert not Path(arguments[arguments.index("--properties-file") + 1]).exists()


def test_a_driver_is_found_by_its_tag_and_yarn_restarts_nothing(tmp_path: Path) -> None:
    settings = yarn_settings(place(tmp_path, queue="streams").profile, INCARNATION, Path("/spark"), {})
    assert settings["spark.yarn.tags"] == f"streamwarden,{INCARNATION.lower()}"
    assert settings["spark.yarn.maxAppAttempts"] == "1"
    assert settings["spark.yarn.queue"] == "streams"
    # The lease, and then the start of Spark.
    assert settings["spark.yarn.am.waitTime"] == "660s"
    assert settings["spark.yarn.jars"] == "local:///spark/jars/*"


def test_a_variable_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StreamwardenError, match="AWS_ACCESS_KEY_ID is not set") as refused:
        yarn_settings(place(tmp_path, environment=["AWS_ACCESS_KEY_ID"]).profile, INCARNATION, Path("/spark"), {})
    assert refused.value.code == "CONFIG_INVALID"


@pytest.mark.parametrize(
    ("output", "code"),
    [
        (
            '26/03/08 WARN Utils: x\nException in thread "main" org.apache.hadoop.yarn.exceptions.YarnException:'
            " Failed to submit application_1 to YARN : unknown queue: nope\n\tat org.apache.Client(Client.java:1)\n",
            "SUBMISSION_REFUSED",
        ),
        (
            'Exception in thread "main" java.net.ConnectException: Call From a to b:8032 failed: Connection refused\n',
            "YARN_UNREACHABLE",
        ),
    ],
)
def test_a_refusal_is_the_drivers_exit(tmp_path: Path, spark: Spark, output: str, code: str) -> None:
    made = place(tmp_path)
    documents = JobDocuments(made.storage, "lamp")
    documents.launch(INCARNATION).write(
        Launch(incarnation=INCARNATION, at=utc_now(), by="me", reason="", digest="", spec=SPEC)
    )
    spark.answers(output, 1)
    given = ["--profile", "test", "--config", str(made.config), "--root", str(made.root), "--job", "lamp"]
    assert main([*given, "--incarnation", INCARNATION]) == 1
    ended = documents.exit(INCARNATION).read()
    assert ended is not None and ended.error is not None
    assert ended.error.code == code and ended.error.retryable
    assert output.splitlines()[-1 if code == "YARN_UNREACHABLE" else 1].strip()[:80] in ended.error.what


def test_an_accepted_submission_writes_no_exit(tmp_path: Path, spark: Spark) -> None:
    made = place(tmp_path)
    documents = JobDocuments(made.storage, "lamp")
    documents.launch(INCARNATION).write(
        Launch(incarnation=INCARNATION, at=utc_now(), by="me", reason="", digest="", spec=SPEC)
    )
    given = ["--profile", "test", "--config", str(made.config), "--root", str(made.root), "--job", "lamp"]
    assert main([*given, "--incarnation", INCARNATION]) == 0
    assert documents.exit(INCARNATION).read() is None
