"""How fast this machine reads memory: what decoding is bound by when all else is right."""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from kvedge.targets.manifest import Manifest
from kvedge.targets.settings import WeightType

_BYTES_A_THREAD = 1 << 27  # beyond any cache
_ROUNDS = 5


def read_bandwidth(threads: int) -> float:
    """Bytes per second that so many threads read together, the median of a few rounds; numpy sums, one array each."""
    arrays = [np.ones(_BYTES_A_THREAD // 4, np.float32) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        rates = []
        for _ in range(_ROUNDS):
            began = time.perf_counter()
            list(pool.map(np.ndarray.sum, arrays))
            rates.append(threads * _BYTES_A_THREAD / (time.perf_counter() - began))
    return statistics.median(rates)


def token_bytes(manifest: Manifest, depth: int) -> int:
    """Bytes that a decode step must read with `depth` tokens in the cache: weights and the pages of the cache."""
    kind = WeightType(manifest.model.weights)
    weights = manifest.model.step_bytes * kind.loaded_bits / kind.stored_bits
    return round(weights) + manifest.cache.cache_bytes(depth + 1, 1)
