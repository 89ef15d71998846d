"""Random numbers that depend on the request's seed and the place of the token in its output, and on nothing else.

A generator with a state would give a token another number when its sequence is preempted, shares the step with others
or is speculated on. Here the number is a hash of its counters.
Source: splitmix64's finaliser (Steele, Lea and Flood, OOPSLA 2014), applied once for each counter.
"""

import secrets

import numpy as np
from numpy.typing import NDArray

_MASK = 2**64 - 1
_STEP = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / the golden ratio: neighbouring counters lie far apart
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def make_seed(seed: int | None) -> int:
    """A seed of 64 bits: the one given, or one that nobody can foresee."""
    return secrets.randbits(64) if seed is None else seed & _MASK


def uniforms(seeds: NDArray[np.uint64], indices: NDArray[np.uint64]) -> NDArray[np.float32]:
    """Numbers of [0, 1), one for each seed and index of a token in the output: multiples of 2^-24, exact in float32."""
    mixed = _mix(_mix(_mix(seeds) + indices))
    return ((mixed >> np.uint64(40)).astype(np.float32)) * np.float32(2**-24)


def uniform(seed: int, index: int) -> float:
    """One such number."""
    return float(uniforms(np.array([seed], np.uint64), np.array([index], np.uint64))[0])


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = x + _STEP  # arrays wrap round silently, which is what is wanted
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))
