"""A 64-bit hash of each row's trip key, the same in every run, on every platform and for every column type.

Not for security: the hash of a known trip can be recomputed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nyc_taxi.trips.columns import TRIP_KEY

__all__ = ["hash_rows", "integers", "microseconds", "unit_interval"]

Hashes = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]

# Stands for null, NaN and infinities. Outside of all real values, so that a null is not a zero.
MISSING = np.int64(-(2**62))
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def hash_rows(trips: pa.Table, *, salt: int = 0, columns: Sequence[str] = TRIP_KEY, signed: bool = True) -> Hashes:
    """Hash the named columns of each row.

    Parameters
    ----------
    A table with the columns.
        Has the columns.
    Different salts give independent hashes.
        Another salt, an independent hash.
    Number and timestamp columns only. Amounts are rounded to cents, so 13.999999999999998 is 14.
        Numbers and timestamps only. Amounts count in cents, so 13.999999999999998 is 14.
    signed
        False gives a charge and its reversal the same hash.
    """
    with np.errstate(over="ignore"):
        state = np.full(trips.num_rows, np.uint64(salt & 0xFFFF_FFFF_FFFF_FFFF), dtype=np.uint64)
        for name in columns:
            column = trips[name]
            if pa.types.is_timestamp(column.type):
                values = microseconds(column)
            elif name.endswith("_amount"):
                values = integers(column, scale=100)
                if not signed:
                    values = np.where(values == MISSING, values, np.abs(values))
            else:
                values = integers(column)
            state = _mix(state + _GOLDEN + values.view(np.uint64))
        return state


def integers(column: pa.ChunkedArray, *, scale: int = 1) -> Integers:
    """Return the numbers times `scale`, rounded; nulls and non-finite values become :data:`MISSING`."""
    if pa.types.is_null(column.type):
        return np.full(len(column), MISSING)
    if pa.types.is_integer(column.type) and scale == 1:
        return _numpy(pc.fill_null(pc.cast(column, pa.int64()), int(MISSING)), np.int64)
    floats = _numpy(pc.fill_null(pc.cast(column, pa.float64(), safe=False), float("nan")), np.float64) * scale
    # Beyond 2**53 a float is no exact integer, and casts of larger values differ between platforms.
    usable = np.isfinite(floats) & (np.abs(floats) < 2**53)
    return np.where(usable, np.rint(np.where(usable, floats, 0.0)).astype(np.int64), MISSING)


def microseconds(column: pa.ChunkedArray) -> Integers:
    """Return timestamps of any unit as microseconds since 1970; nulls become :data:`MISSING`."""
    whole = pc.cast(pc.cast(column, pa.timestamp("us", tz=column.type.tz), safe=False), pa.int64())
    return _numpy(pc.fill_null(whole, int(MISSING)), np.int64)


def unit_interval(hashes: Hashes) -> npt.NDArray[np.float64]:
    """Map hashes evenly to [0, 1)."""
    # 53 bits, which a float holds exactly.
    return (hashes >> np.uint64(11)).astype(np.float64) / float(2**53)


def _mix(value: Hashes) -> Hashes:
    """Scramble a value with the finaliser of splitmix64."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _numpy(column: Any, dtype: Any) -> npt.NDArray[Any]:
    return np.asarray(column.to_numpy(), dtype=dtype)
