"""Operations and a notifier whose clients put every secret into their errors."""

from __future__ import annotations

import time
from typing import Any

from airflow.sdk import BaseNotifier

from streamwarden.errors import StreamwardenError
from tests.canaries import leak


def refuse(*_: Any, **__: Any) -> None:
    """Fail as an operation does whose client was refused."""
    # A test looks at the processes meanwhile.
    time.sleep(2)
    try:
        raise OSError(leak())
    except OSError as error:
        raise StreamwardenError("SAVEPOINT_FAILED", leak(), retryable=False) from error


def break_off(*_: Any, **__: Any) -> None:
    """Fail with an error that nobody expected."""
    raise ValueError(leak())


class LeakingNotifier(BaseNotifier):
    """A notifier that is refused."""

    def notify(self, context: Any) -> None:
        del context
        raise ConnectionError(leak())
