"""Products and lookups with weights in blocks, in standard operators.

A product reads integers of 4 bits through DequantizeLinear, [inputs, outputs] with a float16 scale for 32 inputs, and
is made in float16: what TensorRT keeps in 4 bits, and what ONNX Runtime fuses into MatMulNBits. Codes of 8 bits are two
such matrices, one below the other, that meet the inputs twice; TensorRT has no blocks of 8 bits. What scales alone
cannot hold (kvedge.export.standard.symmetric) is a second, small product: the sums of the inputs of each block times
the blocks' offsets. Bits a weight: 4.5 or 9, and half a bit more with offsets.

A lookup finds int32 words of codes and only then makes numbers of what it found, exactly: TensorRT gathers no integers
of 4 or 8 bits, and a table that is dequantized first may be so as a whole, in every step. Bits a weight: 5 or 9.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from kvedge.export.block_weights import optional_input
from kvedge.export.put_floats import bytes_of
from kvedge.export.standard.expr import FLOAT, FLOAT16, Expr, Recorder, concat
from kvedge.export.standard.norms import product_input
from kvedge.export.standard.symmetric import Symmetric, symmetric
from kvedge.export.standard.words import split_words
from kvedge.plugins import schema
from kvedge.plugins.reference.linear import Blocks, read_blocks
from kvedge.targets.block_weights import BLOCK

OPSET = 21
"""Of DequantizeLinear with blocks and 4 bits."""

_HALF_BITS = 16
_PAIR = 2
"""Outputs must come in pairs, as integers of 4 bits do in bytes; a stored matrix goes on with outputs of zero."""


def linear(node: ir.Node, recorder: Recorder) -> list[Expr | None]:
    """BlockLinear: the product, and the sum that its norm was made of."""
    x, total = product_input(node, recorder)
    y = _product(x, node, matrices=1)
    bias = optional_input(node, schema.BIAS)
    return [y if bias is None else y + recorder.of(bias), total]


def gated(node: ir.Node, recorder: Recorder) -> list[Expr | None]:
    """BlockGated: activation(x . gate) * (x . up), and the sum that its norm was made of."""
    x, total = product_input(node, recorder)
    both, outputs = _product(x, node, matrices=2), node.attributes["outputs"].as_int()
    gate, up = both.part(-1, 0, outputs), both.part(-1, outputs, 2 * outputs)
    if node.attributes["activation"].as_string() == schema.SILU:
        activated = gate * gate.sigmoid()
    else:
        activated = recorder.node("Gelu", [gate], FLOAT, {"approximate": "tanh"})
    return [activated * up, total]


def embedding(node: ir.Node, recorder: Recorder) -> list[Expr | None]:
    """BlockEmbedding: rows of ids."""
    ids, stored = node.inputs
    assert ids is not None and stored is not None
    blocks = _blocks(stored, node, node.attributes["outputs"].as_int())
    words = np.ascontiguousarray(_packed(blocks.codes, blocks.bits)).view("<i4")
    tables = {"rows": words, "row_scale": blocks.scale, "row_minimum": blocks.minimum}
    found, scale, minimum = (
        recorder.stored(ir.tensor(table, name=f"{stored.name}.{name}")).take(recorder.of(ids), 0)
        for name, table in tables.items()
    )
    codes = _codes(found, blocks.bits).reshape(0, 0, -1, BLOCK)
    rows = codes * scale.unsqueeze(-1).cast(FLOAT) + minimum.unsqueeze(-1).cast(FLOAT)
    return [rows.reshape(0, 0, -1)]


def _codes(words: Expr, bits: int) -> Expr:
    """float32 [..., words, halves, codes of a half]: codes from the lowest bit on."""
    halves = concat([half.unsqueeze(-1) for half in split_words(words)], -1).unsqueeze(-1)
    shifted = (halves * np.ldexp(np.float32(1), -np.arange(0, _HALF_BITS, bits, dtype=np.int32))).floor()
    size = float(1 << bits)
    return shifted - (shifted * (1 / size)).floor() * size


def _product(x: Expr, node: ir.Node, matrices: int) -> Expr:
    """float32 [..., outputs] of all matrices side by side: one product, to which inputs come once for each plane."""
    stored, half = node.inputs[1], x.cast(FLOAT16)
    assert stored is not None
    outputs = matrices * node.attributes["outputs"].as_int()
    weights = symmetric(_blocks(stored, node, outputs + outputs % _PAIR))
    y = (concat([half] * weights.planes, -1) @ _dequantized(weights, x.recorder, str(stored.name))).cast(FLOAT)
    if weights.offset.any():
        offset = x.recorder.stored(ir.tensor(weights.offset.T.copy(), name=f"{stored.name}.offset"))
        sums = x.reshape(0, 0, -1, BLOCK).sum(-1).squeeze(-1)
        y = y + (sums.cast(FLOAT16) @ offset).cast(FLOAT)
    return y.part(-1, 0, outputs) if outputs % _PAIR else y


def _dequantized(weights: Symmetric, recorder: Recorder, name: str) -> Expr:
    """float16 [planes * inputs, outputs]: what the inputs meet, once for each plane."""
    codes, scale = weights.stacked()
    packed = ir.PackedTensor(_packed(codes, 4), ir.DataType.INT4, shape=ir.Shape(codes.shape), name=f"{name}.codes")
    inputs = [recorder.stored(packed), recorder.stored(ir.tensor(scale, name=f"{name}.scale"))]
    return recorder.node("DequantizeLinear", inputs, FLOAT16, {"axis": 0, "block_size": BLOCK})


def _blocks(stored: ir.Value, node: ir.Node, outputs: int) -> Blocks:
    assert stored.const_value is not None
    return read_blocks(bytes_of(stored.const_value), node.attributes["bits"].as_int(), outputs)


def _packed(codes: NDArray[np.uint8], bits: int) -> NDArray[Any]:
    """Codes as bytes, the first of two of 4 bits in the low half."""
    if bits == 8:
        return codes
    return codes[:, 0::2] | codes[:, 1::2] << np.uint8(4)
