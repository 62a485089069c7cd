"""How fast this machine reads memory: what decoding is bound by when all else is right."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from kvedge.plugins.native import native
from kvedge.targets.manifest import Manifest
from kvedge.targets.plan import seen_bytes
from kvedge.targets.settings import WeightType

_BYTES = 1 << 28  # of all threads together: beyond any cache
_WORDS = 64  # kvedge_read takes whole ones of so many
_ROUNDS = 5


def read_bandwidth(threads: int) -> float:
    """Bytes per second that so many threads read together, a part each; the best of a few rounds."""
    whole = _WORDS * max(1, _BYTES // (4 * _WORDS * threads))  # of one thread
    arrays = np.ones((threads, whole), np.int32)
    with ThreadPoolExecutor(threads) as pool:
        rates = []
        for _ in range(_ROUNDS):
            began = time.perf_counter()
            list(pool.map(native().read, arrays))
            rates.append(arrays.nbytes / (time.perf_counter() - began))
    return max(rates)


def token_bytes(manifest: Manifest, depth: int) -> int:
    """Bytes that a decode step must read with `depth` tokens in the cache: weights, and what the token sees."""
    kind = WeightType(manifest.model.weights)
    weights = manifest.model.step_bytes * kind.loaded_bits / kind.stored_bits
    return round(weights) + seen_bytes(manifest.cache, depth)
