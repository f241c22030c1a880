from __future__ import annotations

import pytest

from tests.chaos.liveness import HUNG_S, Liveness

pytestmark = pytest.mark.unit


def test_what_lives_and_is_unwell_for_long_is_hung_and_nothing_else() -> None:
    liveness, both = Liveness(), ("scheduler", "triggerer")
    assert liveness.hung(both, both, 0.0) == []
    # One gets well again, for a moment.
    assert liveness.hung(("scheduler",), both, HUNG_S / 2) == []
    assert liveness.hung(both, both, HUNG_S) == ["scheduler"]
    # It has been started again.
    assert liveness.hung(("scheduler",), both, HUNG_S + 1) == []
    # What has ended is not hung, and has its time once it is there again.
    assert liveness.hung(both, ("triggerer",), 2 * HUNG_S) == []
    assert liveness.hung(both, both, 2 * HUNG_S + 1) == []
    assert liveness.hung(both, both, 3 * HUNG_S) == ["triggerer"]
