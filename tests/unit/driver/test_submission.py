"""What is given to `spark-submit`, and what becomes of its refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamwarden.driver.submission import main, submit
from streamwarden.driver.yarn_settings import yarn_settings
from streamwarden.errors import StreamwardenError
from streamwarden.model.record import utc_now
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import DriverState, Exit, Heartbeat, Launch
from streamwarden.runtime.processes import current_process
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from tests.batches import make_place
from tests.unit.driver.made_spark import MadeSpark

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


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeSpark:
    return MadeSpark(tmp_path / "spark", monkeypatch, {"spark.app.name": "streamwarden lamp"})


def place(folder: Path, **yarn: Any) -> Workspace:
    block = {"resource_managers": ["http://rm:8088"], **yarn}
    return make_place(folder, launcher="yarn", master="yarn", lease="60s", same_image=True, yarn=block)


def test_a_submission_names_no_secret_on_its_command_line(
    tmp_path: Path, spark: MadeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAMP_SECRET", SECRET)
    made = place(tmp_path, environment=["LAMP_SECRET"], hadoop_conf="/etc/hadoop", config="./env/config")
    submit(made, "lamp", SPEC, INCARNATION)
    given = spark.given
    assert given["mode"] == 0o600 and given["conf"] == "/etc/hadoop"
    assert SECRET not in " ".join(given["arguments"])
    rows = spark.properties
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
    settings = yarn_settings(place(tmp_path, queue="streams").profile, INCARNATION, Path("/spark"))
    assert settings["spark.yarn.tags"] == f"streamwarden,{INCARNATION.lower()}"
    assert settings["spark.yarn.maxAppAttempts"] == "1"
    assert settings["spark.yarn.queue"] == "streams"
    # The lease, and then the start of Spark.
    assert settings["spark.yarn.am.waitTime"] == "660s"
    assert settings["spark.yarn.jars"] == "local:///spark/jars/*"


def test_a_variable_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    with pytest.raises(StreamwardenError, match="AWS_ACCESS_KEY_ID is not set") as refused:
        yarn_settings(place(tmp_path, environment=["AWS_ACCESS_KEY_ID"]).profile, INCARNATION, Path("/spark"))
    assert refused.value.code == "CONFIG_INVALID"


def submitted(made: Workspace) -> int:
    """Run the process that submits a launched driver; return its exit code."""
    launch = Launch(incarnation=INCARNATION, at=utc_now(), by="me", reason="", digest="", spec=SPEC)
    JobDocuments(made.storage, "lamp").launch(INCARNATION).write(launch)
    place = ["--profile", "test", "--config", str(made.config), "--root", str(made.root)]
    return main([*place, "--job", "lamp", "--incarnation", INCARNATION])


def exit_of(made: Workspace) -> Exit | None:
    return JobDocuments(made.storage, "lamp").exit(INCARNATION).read()


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
def test_a_refusal_is_the_drivers_exit(tmp_path: Path, spark: MadeSpark, output: str, code: str) -> None:
    made = place(tmp_path)
    spark.answers(output, 1)
    assert submitted(made) == 1
    ended = exit_of(made)
    assert ended is not None and ended.error is not None
    assert ended.error.code == code and ended.error.retryable
    assert output.splitlines()[-1 if code == "YARN_UNREACHABLE" else 1].strip()[:80] in ended.error.what


def test_a_stop_during_the_submission_is_no_refusal(tmp_path: Path, spark: MadeSpark) -> None:
    made = place(tmp_path)
    JobDocuments(made.storage, "lamp").request_stop(INCARNATION, by="me")
    spark.answers("YarnException: Application application_1_0013 was killed by user me\n", 1)
    assert submitted(made) == 1
    ended = exit_of(made)
    assert ended is not None and ended.outcome == "stopped" and ended.error is None


def test_an_accepted_submission_writes_no_exit(tmp_path: Path, spark: MadeSpark) -> None:
    made = place(tmp_path)
    assert submitted(made) == 0
    assert exit_of(made) is None


def test_a_submission_that_fails_after_its_driver_has_come_to_run_writes_no_exit(
    tmp_path: Path, spark: MadeSpark
) -> None:
    made, now = place(tmp_path), utc_now()
    beats = Heartbeat(
        incarnation=INCARNATION, at=now, started_at=now, state=DriverState.RUNNING, process=current_process()
    )
    JobDocuments(made.storage, "lamp").heartbeat(INCARNATION).write(beats)
    spark.answers("java.io.IOException: Broken pipe\n", 1)
    assert submitted(made) == 0
    assert exit_of(made) is None
