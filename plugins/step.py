"""The arrays of one PagedAttention step of one layer, as numpy and native kernels take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvedge.plugins.key_bias import KeyBias

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


@dataclass(kw_only=True)
class PagedStep:
    """Inputs of one step; hot and packed are changed in place. Shapes as in kvedge.plugins.schema."""

    q: Floats
    k: Floats
    v: Floats
    hot: NDArray[Any]
    packed: Ints | None
    hot_table: Ints
    packed_table: Ints | None
    context: Ints
    num_new: Ints
    sink_cos: Floats | None = None
    sink_sin: Floats | None = None
    bias: KeyBias | None = None
