"""linear: products with weights in blocks, and the weights themselves; twin of cpu/linear*.cc and linear_amx.h."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvedge.plugins.schema import SILU
from kvedge.targets.block_weights import BLOCK, FOUR, TILE, code_bytes, stored_shape

_LARGEST = np.float32(127)


@dataclass(frozen=True)
class Blocks:
    """A weight matrix in blocks.

    Args:
        bits: of a code, 4 or 8.
        codes: uint8 [outputs, inputs].
        scale: float16 [outputs, inputs / 32]; minimum: the same: weight = scale * code + minimum.
    """

    bits: int
    codes: NDArray[np.uint8]
    scale: NDArray[np.float16]
    minimum: NDArray[np.float16]

    def weights(self) -> NDArray[np.float32]:
        """The matrix, float32 [outputs, inputs]."""
        outputs, inputs = self.codes.shape
        weights = self.codes.reshape(outputs, -1, BLOCK).astype(np.float32)
        weights *= self.scale.astype(np.float32)[..., None]
        weights += self.minimum.astype(np.float32)[..., None]
        return weights.reshape(outputs, inputs)


def store_blocks(blocks: Blocks) -> NDArray[np.uint8]:
    """Lay a matrix out as `kvedge.targets.block_weights` says."""
    outputs, inputs = blocks.codes.shape
    tiles, per_row, _ = shape = stored_shape(blocks.bits, outputs, inputs)
    padded = [
        np.concatenate([part, np.zeros((tiles * TILE - outputs, part.shape[1]), part.dtype)])
        for part in (blocks.codes, blocks.scale, blocks.minimum)
    ]
    # [tile, output, block, four, input] -> [tile, block, four, output, input]
    codes = padded[0].reshape(tiles, TILE, per_row, BLOCK // FOUR, FOUR).transpose(0, 2, 3, 1, 4)
    if blocks.bits == 4:
        codes = codes[:, :, 0::2] | codes[:, :, 1::2] << 4
    scales = [part.reshape(tiles, TILE, per_row).transpose(0, 2, 1).copy().view(np.uint8) for part in padded[1:]]
    return np.concatenate([codes.reshape(tiles, per_row, -1), *scales], axis=2).reshape(shape)


def read_blocks(stored: NDArray[np.uint8], bits: int, outputs: int) -> Blocks:
    """Undo `store_blocks`."""
    tiles, per_row, _ = stored.shape
    codes, scales = stored[..., : code_bytes(bits)], stored[..., code_bytes(bits) :]
    chunks = codes.reshape(tiles, per_row, -1, TILE, FOUR)
    if bits == 4:
        chunks = np.stack([chunks & 15, chunks >> 4], axis=3).reshape(tiles, per_row, -1, TILE, FOUR)
    rows = chunks.transpose(0, 3, 1, 2, 4).reshape(tiles * TILE, per_row * BLOCK)
    halves = np.ascontiguousarray(scales).view(np.float16).reshape(tiles, per_row, 2, TILE)
    scale, minimum = halves.transpose(2, 0, 3, 1).reshape(2, tiles * TILE, per_row)
    return Blocks(bits, rows[:outputs], scale[:outputs], minimum[:outputs])


def quantize_rows(x: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Inputs [rows, inputs] as 8-bit codes and scales [rows, inputs / 32]: x = scale * code, to half a step."""
    blocks = x.reshape(len(x), -1, BLOCK)
    most = np.abs(blocks).max(-1)
    inverse = np.divide(_LARGEST, most, out=np.zeros_like(most), where=most > 0)
    codes = np.rint(blocks * inverse[..., None]).astype(np.int8)
    return codes.reshape(x.shape), most / _LARGEST


@dataclass(frozen=True)
class Norm:
    """The RMS norm in front of a product (Zhang and Sennrich, 2019), and the residual sum in front of that.

    Args:
        gamma: float32 [inputs]; epsilon: added to the mean of squares.
        skip: float32 [rows, inputs], added to the rows first; None for nothing.
    """

    gamma: NDArray[np.float32]
    epsilon: float
    skip: NDArray[np.float32] | None = None


def normalized(x: NDArray[np.float32], norm: Norm) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """What meets the weights, and the sum that was normalized; both float32 [rows, inputs], as x."""
    total = x if norm.skip is None else x + norm.skip
    mean = np.mean(np.square(total, dtype=np.float64), axis=-1, keepdims=True)
    return np.asarray(norm.gamma * total / np.sqrt(mean + norm.epsilon), np.float32), total


def linear(x: NDArray[np.float32], blocks: Blocks, bias: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """Rows [rows, inputs] times a matrix: float32 [rows, outputs].

    Inputs are rounded to 8 bits, block by block, and meet the codes in integers.
    """
    codes, scale = quantize_rows(x)
    rows, weights = codes.reshape(len(x), -1, BLOCK), blocks.codes.reshape(len(blocks.codes), -1, BLOCK)
    products = np.einsum("rbi,obi->rob", rows.astype(np.float64), weights.astype(np.float64))
    sums = scale.astype(np.float64) * rows.sum(-1, dtype=np.int64)
    y = np.einsum("rob,rb,ob->ro", products, scale.astype(np.float64), blocks.scale.astype(np.float64))
    y += sums @ blocks.minimum.astype(np.float64).T
    return np.asarray(y if bias is None else y + bias, np.float32)


def rounded_to_brain(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Finite numbers rounded to bfloat16, to nearest even."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    odd = bits >> np.uint32(16) & np.uint32(1)
    return np.asarray((bits + np.uint32(0x7FFF) + odd & np.uint32(0xFFFF0000)).view(np.float32))


def linear_of_many(
    x: NDArray[np.float32], blocks: Blocks, bias: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """As linear, where matrix units take many rows at once: inputs and weights are rounded to bfloat16."""
    y = rounded_to_brain(x).astype(np.float64) @ rounded_to_brain(blocks.weights()).astype(np.float64).T
    return np.asarray(y if bias is None else y + bias, np.float32)


def gated(gate: NDArray[np.float32], up: NDArray[np.float32], activation: str) -> NDArray[np.float32]:
    """activation(gate) * up, of two products [rows, outputs]; both activations are x times a sigmoid."""
    g = gate.astype(np.float64)
    z = g if activation == SILU else 2 * np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)
    return np.asarray(up * g * (1 + np.tanh(z / 2)) / 2, np.float32)
