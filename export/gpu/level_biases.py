"""Key biases of all layers with as many pairs: their number is what kernels are compiled for.

Which pairs of a bias matter is a matter of its values, so layers differ, and each would need kernels of its own. Those
that have fewer get pairs of zeros, of channels that they have not named yet: nothing is subtracted or added for them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from kvedge.export.gpu.node import given_inputs
from kvedge.plugins.key_bias import KeyBias
from kvedge.targets.spec import RopeSpec

_NAMES = {"page": "bias_page", "freqs": "bias_freqs", "channels": "bias_channels"}


def level_biases(nodes: list[tuple[ir.Node, RopeSpec]]) -> None:
    """Fill up the biases of stamped nodes, in place, to the most pairs that one has.

    Args:
        nodes: those with a key bias, each with its layer's rotary embedding.
    """
    found = [{name: given_inputs(node)[_NAMES[name]] for name in _NAMES} for node, _ in nodes]
    biases = [KeyBias(**{name: _array(value) for name, value in values.items()}) for values in found]
    most = max((len(bias.freqs) for bias in biases), default=0)
    for values, bias, (_, rope) in zip(found, biases, nodes, strict=True):
        filled = filled_up(bias, rope, most)
        for name, value in values.items():
            tensor = ir.tensor(getattr(filled, name), name=value.name)
            value.const_value, value.shape = tensor, ir.Shape(tensor.shape.numpy())


def filled_up(bias: KeyBias, rope: RopeSpec, pairs: int) -> KeyBias:
    """The same bias with so many pairs; those that are new are zero."""
    numbers = np.arange(rope.pairs, dtype=np.int32)
    first = 2 * numbers if rope.interleaved else numbers
    second = first + 1 if rope.interleaved else first + rope.pairs
    more = np.flatnonzero(~np.isin(first, bias.channels))[: pairs - len(bias.freqs)]
    sides = zip(np.split(bias.channels, 2), (first, second), strict=True)
    a, b = np.split(bias.page, 2, axis=1)
    zeros = np.zeros((len(a), len(more), a.shape[2]), np.float32)
    return KeyBias(
        page=np.concatenate([a, zeros, b, zeros], 1),
        freqs=np.concatenate([bias.freqs, np.zeros(len(more), np.float32)]),
        channels=np.concatenate([part for side, channels in sides for part in (side, channels[more])]),
    )


def _array(value: ir.Value) -> NDArray[Any]:
    assert value.const_value is not None
    return np.asarray(value.const_value.numpy())
