"""cos and sin of rotary embeddings, computed in float64: fp32 angles are off by 0.01 rad at a million tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvedge.targets.spec import RopeSpec

Floats = NDArray[np.float32]


def rotary_table(rope: RopeSpec, positions: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """cos and sin [..., pairs] of positions [...], times the attention scaling: what the model multiplies with."""
    angles = positions.astype(np.float64)[..., None] * np.array(rope.inv_freq, np.float64)
    scaled = (rope.attention_scaling * f(angles) for f in (np.cos, np.sin))
    return next(scaled).astype(np.float32), next(scaled).astype(np.float32)


def turn_table(rope: RopeSpec, shifts: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """cos and sin [..., pairs] of a pure turn by shifts [...] positions: the scaling is in the keys already."""
    angles = shifts.astype(np.float64)[..., None] * np.array(rope.inv_freq, np.float64)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
