"""Compute random numbers that depend only on the request's seed and on the token's place in its output.

With a stateful generator, a token's number would depend on preemptions, on other requests in the step, and on
speculation. Here, the number is a hash of seed and place.
Source: splitmix64's finaliser (Steele, Lea and Flood, OOPSLA 2014), applied once for each counter.
"""

import secrets

import numpy as np
from numpy.typing import NDArray

_MASK = 2**64 - 1
_STEP = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio, which spreads neighbouring counters
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def make_seed(seed: int | None) -> int:
    """Return a seed of 64 bits: the given one, or an unpredictable one."""
    return secrets.randbits(64) if seed is None else seed & _MASK


def uniforms(seeds: NDArray[np.uint64], indices: NDArray[np.uint64]) -> NDArray[np.float32]:
    """Return numbers from [0, 1). They are multiples of 2^-24, so that float32 holds them exactly.

    `indices` are the places of each request's token in its output, in the shape of `seeds`.
    """
    mixed = _mix(_mix(_mix(seeds) + indices))
    return ((mixed >> np.uint64(40)).astype(np.float32)) * np.float32(2**-24)


def uniform(seed: int, index: int) -> float:
    return float(uniforms(np.array([seed], np.uint64), np.array([index], np.uint64))[0])


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = x + _STEP  # numpy's uint64 arrays overflow silently, as intended
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))
