"""Synthetic series at the frequency of milliseconds: readings of sensors, and trades."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa

__all__ = ["sensor_readings", "trades"]

_START = datetime(2023, 3, 8, 12, tzinfo=UTC)


def sensor_readings(
    rows: int, *, sensors: int = 20, every: timedelta = timedelta(milliseconds=50), seed: int = 0
) -> pa.Table:
    """Return readings in the order of their times: ``sensor_id``, ``at``, ``celsius``.

    Temperatures swing slowly between 60 and 90 degrees, each sensor's at its own time, with noise of some degrees.

    Parameters
    ----------
    rows
        Number of readings.
    sensors
        Number of sensors.
    every
        The mean time between two readings of a sensor.
    seed
        The same seed gives the same readings.
    """
    random = np.random.default_rng(seed)
    sensor, at = _arrivals(random, rows, sensors, every)
    phase = random.uniform(0, 2 * np.pi, sensors)[sensor]
    celsius = 75 + 15 * np.sin(phase + at / 60e6 * 2 * np.pi) + random.normal(0, 3, rows)
    return pa.table(
        {
            "sensor_id": _names("s", sensor),
            "at": _times(at),
            "celsius": pa.array(np.round(celsius, 2)),
        }
    )


def trades(rows: int, *, symbols: int = 8, every: timedelta = timedelta(milliseconds=100), seed: int = 0) -> pa.Table:
    """Return trades in the order of their times: ``symbol``, ``at``, ``price``, ``size``.

    Prices walk around 100; sizes have a long tail.

    Parameters
    ----------
    rows, symbols, every, seed
        As for :func:`sensor_readings`.
    """
    random = np.random.default_rng(seed)
    symbol, at = _arrivals(random, rows, symbols, every)
    price = np.empty(rows)
    for number in range(symbols):
        mine = symbol == number
        price[mine] = 100 + np.cumsum(random.normal(0, 0.3, int(mine.sum())))
    size = np.ceil(random.lognormal(3, 1.2, rows))
    return pa.table(
        {
            "symbol": _names("S", symbol),
            "at": _times(at),
            "price": pa.array(np.round(np.abs(price), 2)),
            "size": pa.array(size),
        }
    )


def _arrivals(random: np.random.Generator, rows: int, keys: int, every: timedelta) -> tuple[np.ndarray, np.ndarray]:
    """Return the key of each event and its time in microseconds since the start, in order."""
    mean = every / timedelta(microseconds=1) / keys
    at = np.cumsum(random.exponential(mean, rows)).astype(np.int64) // 1000 * 1000
    return random.integers(0, keys, rows), at


def _names(letter: str, numbers: np.ndarray) -> pa.Array:
    return pa.array([f"{letter}{number:03d}" for number in numbers.tolist()], pa.string())


def _times(micros: np.ndarray) -> pa.Array:
    start = int(_START.timestamp()) * 1_000_000
    return pa.array(micros + start, pa.timestamp("us", "UTC"))
