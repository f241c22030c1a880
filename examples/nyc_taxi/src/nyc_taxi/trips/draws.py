"""Reproducible random draws: one named stream for each purpose."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Draws"]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


class Draws:
    """Random draws by name: a new name does not change the other streams.

    Uses only uniform numbers of PCG64, whose stream is stable across NumPy versions; other distributions may change.

    Parameters
    ----------
    seed
        Equal seeds give equal draws.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def uniform(self, name: str, count: int) -> Floats:
        """Return `count` numbers in [0, 1)."""
        return np.random.Generator(np.random.PCG64([self._seed, zlib.crc32(name.encode())])).random(count)

    def chance(self, name: str, count: int, share: float) -> npt.NDArray[np.bool_]:
        """Return `count` booleans, of which about `share` are true."""
        return self.uniform(name, count) < share

    def pick(self, name: str, count: int, weights: Sequence[float] | Floats) -> Integers:
        """Return `count` positions in `weights`, drawn with these weights."""
        edges = np.cumsum(np.asarray(weights, dtype=np.float64))
        places: Integers = np.searchsorted(edges, self.uniform(name, count) * edges[-1], side="right")
        # A rounding error must not exceed the last position.
        return np.minimum(places, len(edges) - 1)

    def quantiles(self, name: str, count: int, values: Sequence[float]) -> Floats:
        """Return `count` values of a distribution given by its quantiles at even steps."""
        return np.interp(self.uniform(name, count), np.linspace(0, 1, len(values)), values)

    def some(self, name: str, among: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
        """Return `count` distinct items of `among`; all of them if there are fewer."""
        return among[np.argsort(self.uniform(name, len(among)), kind="stable")[:count]]
