"""What becomes of an error of Spark's repartitioning."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

from streamwarden.driver.repartition import repartition
from streamwarden.errors import StreamwardenError

pytestmark = pytest.mark.unit


def failing(error: Exception) -> Any:
    def refuse(*_: object) -> None:
        raise error

    return SimpleNamespace(_streamingCheckpointManager=SimpleNamespace(repartition=refuse))


@pytest.mark.parametrize("error", [Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError(111)])
def test_no_answer_is_left_to_whoever_knows_how_the_jvm_ended(error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        repartition(failing(error), "file:///checkpoint", 4)
    assert raised.value is error


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("[STATE_REPARTITION_INVALID_CHECKPOINT.UNSUPPORTED_PROVIDER] no", "RESCALE_UNSUPPORTED"),
        ("[STATE_REPARTITION_INVALID_CHECKPOINT.NO_COMMITTED_BATCH] no", "RESCALE_FAILED"),
        ("anything else", "RESCALE_FAILED"),
    ],
)
def test_what_spark_says_has_a_code(said: str, code: str) -> None:
    with pytest.raises(StreamwardenError, match=code):
        repartition(failing(RuntimeError(said)), "file:///checkpoint", 4)


def test_one_that_was_done_already_is_done() -> None:
    said = "[STATE_REPARTITION_INVALID_PARAMETER.SHUFFLE_PARTITIONS_ALREADY_MATCH] 4"
    repartition(failing(RuntimeError(said)), "file:///checkpoint", 4)
