import json
import os
import time
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from streamwarden.quality.engine import jsonable

pytestmark = pytest.mark.unit


@pytest.fixture
def far_away():
    before = os.environ.get("TZ")
    os.environ["TZ"] = "America/New_York"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.usefixtures("far_away")
def test_timestamps_are_written_in_utc_whatever_the_machines_zone():
    # What Spark hands over for noon in UTC on a machine in New York.
    assert jsonable(datetime(2023, 3, 6, 7, 0)) == "2023-03-06T12:00:00Z"
    assert jsonable(datetime(2023, 3, 6, 12, 0, 0, 5, tzinfo=UTC)) == "2023-03-06T12:00:00.000005Z"


def test_values_become_json_and_lose_nothing():
    values = {
        "money": Decimal("12345678901234567.80"),
        "nan": float("nan"),
        "infinity": float("-inf"),
        "day": date(2023, 3, 6),
        "zones": (1, None),
        "flag": True,
        "object": {1: object},
    }
    found = json.loads(json.dumps(jsonable(values), allow_nan=False))
    assert found["money"] == "12345678901234567.80"
    assert (found["nan"], found["infinity"], found["day"]) == ("nan", "-inf", "2023-03-06")
    assert found["zones"] == [1, None]
    assert found["flag"] is True
    assert found["object"] == {"1": "<class 'object'>"}
