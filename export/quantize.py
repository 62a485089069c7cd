"""Find blocks of 4 or 8 bits for a model's weights, and put what they say in the weights' place.

Weights that come from a file with such blocks lie on a lattice in each of them: their codes are found again, so
that they keep their integers (GGUF's Q4_0, Q4_1 and Q8_0 lose nothing, Q4_K the rounding of its scales to fp16).
All others get the scale and minimum of least squared error among ranges that leave out more and more of the outer
weights, each followed by a least squares fit to its codes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kvedge.plugins.reference.linear import Blocks
from kvedge.targets.block_weights import BLOCK
from kvedge.targets.errors import require
from kvedge.targets.settings import WeightType

_RANGES = {4: (1.0, 0.95, 0.9, 0.85, 0.8, 0.7), 8: (1.0,)}
_FEWER_STEPS = range(14, 6, -1)  # of a 4-bit lattice from the smallest to the largest weight of a block, usually 15
_KEPT = 1e-6  # squared error over squared weights: float32 and fp16 roundings; 8-bit codes alone cost 3e-5
_LARGEST_HALF = 65504.0
_CHUNK = 4096  # blocks at a time: what belongs to them stays in the CPU's cache
_SAMPLE = 512  # blocks that show whether a matrix lies on lattices


@dataclass(frozen=True)
class QuantizedModel:
    """What `quantize_model` found.

    Args:
        blocks: by name of the parameter, whose values in the model are now those of the blocks.
        weights: what a comparison with the model's own weights needs.
    """

    blocks: dict[str, Blocks]
    weights: QuantizedWeights


@dataclass(frozen=True)
class QuantizedWeights:
    """What weights in blocks were made of.

    Args:
        originals: the values that it had, of parameters of which not all blocks could be kept; float32, or a type
            of 16 bits that holds them exactly.
        kept: share of the weights whose blocks could be kept.
    """

    originals: dict[str, Tensor]
    kept: float


def quantize_model(model: nn.Module, weights: WeightType) -> QuantizedModel | None:
    """Quantize embeddings and linear layers of `model` in place; None where `weights` are floats.

    Matrices whose inputs do not come in whole blocks stay as they are. Those that only 8 bits can keep get 8 bits.

    Raises:
        KvedgeError: weights that are no finite numbers.
    """
    if weights.bits is None:
        return None
    blocks, originals = {}, {}
    kept = total = 0
    for name, parameter in _matrices(model):
        finite = bool(torch.isfinite(parameter.data).all())
        require(finite, f"weights {name}", expected="finite numbers", got="inf or NaN", fix="get the checkpoint again")
        blocks[name], kept_blocks = find_blocks(parameter.data, _bits_for(parameter.data, weights.bits))
        if kept_blocks * BLOCK < parameter.numel():
            originals[name] = _compact(parameter.data)
        parameter.data = torch.from_numpy(blocks[name].weights())
        kept += kept_blocks * BLOCK
        total += parameter.numel()
    return QuantizedModel(blocks, QuantizedWeights(originals, kept / total if total else 1.0))


def _compact(weights: Tensor) -> Tensor:
    """The same values in 16 bits, where a checkpoint's came from them."""
    halves = (weights.to(dtype) for dtype in (torch.bfloat16, torch.float16))
    return next((half for half in halves if torch.equal(half.float(), weights)), weights)


@contextmanager
def original_weights(model: nn.Module, quantized: QuantizedWeights | None) -> Iterator[None]:
    """The model as it was before `quantize_model`, while the block runs."""
    names = quantized.originals if quantized else {}
    parameters = {name: model.get_parameter(name) for name in names}
    rounded = {name: parameter.data for name, parameter in parameters.items()}
    try:
        for name, parameter in parameters.items():
            parameter.data = names[name].float()
        yield
    finally:
        for name, parameter in parameters.items():
            parameter.data = rounded[name]


def _matrices(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Weights of linear layers and embeddings, each once, where their inputs come in whole blocks."""
    layers = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear | nn.Embedding)}
    for name, parameter in model.named_parameters():
        if id(parameter) in layers and parameter.shape[1] % BLOCK == 0:
            yield name, parameter


def _bits_for(weights: Tensor, wanted: int) -> int:
    """Bits that keep a matrix, judged by some of its blocks; as wanted where none do."""
    blocks = weights.reshape(-1, BLOCK)
    sample = blocks[torch.linspace(0, len(blocks) - 1, min(_SAMPLE, len(blocks))).long()]
    return next((bits for bits in sorted({wanted, 8}) if _share_kept(sample, bits) > 0.9), wanted)


def _share_kept(blocks: Tensor, bits: int) -> float:
    best = _Best(blocks, bits)
    _try_lattices(best)
    return 1.0 - len(best.rest()) / len(blocks)


def find_blocks(weights: Tensor, bits: int) -> tuple[Blocks, int]:
    """Blocks of a float32 matrix [outputs, inputs], and how many of them could be kept."""
    chunks = [_find_chunk(chunk, bits) for chunk in torch.split(weights.reshape(-1, BLOCK), _CHUNK)]
    codes, scale, minimum = (torch.cat([getattr(best, part) for best in chunks]) for part in _PARTS)
    outputs = len(weights)
    return Blocks(
        bits=bits,
        codes=codes.reshape(outputs, -1).numpy(),
        scale=scale.reshape(outputs, -1).numpy(),
        minimum=minimum.reshape(outputs, -1).numpy(),
    ), sum(best.num_kept for best in chunks)


_PARTS = ("codes", "scale", "minimum")


@dataclass(frozen=True)
class _Chunk:
    """Codes uint8 [blocks, 32], scale and minimum float16 [blocks, 1], and how many of the blocks were kept."""

    codes: Tensor
    scale: Tensor
    minimum: Tensor
    num_kept: int


def _find_chunk(values: Tensor, bits: int) -> _Chunk:
    best = _Best(values, bits)
    _try_lattices(best)
    num_kept = len(values) - len(best.rest())
    if num_kept < len(values):
        for share in _RANGES[bits]:
            best.offer_fit(share)
    return _Chunk(best.codes.to(torch.uint8), best.scale.half(), best.minimum.half(), num_kept)


def _try_lattices(best: _Best) -> None:
    """Offer scales and minima as formats with such blocks choose them, as long as that helps."""
    low, high = best.values.amin(1, keepdim=True), best.values.amax(1, keepdim=True)
    most = best.values.gather(1, best.values.abs().argmax(1, keepdim=True))
    best.offer((high - low) / 15, low)  # Q4_1, Q4_K
    symmetric = _half(most / -8)
    best.offer(symmetric, -8 * symmetric)  # Q4_0
    if best.bits == 8:
        symmetric = _half(most.abs() / 127)
        best.offer(symmetric, -128 * symmetric)  # Q8_0
    if len(best.rest()) in (0, len(best.values)):
        return
    for steps in _FEWER_STEPS:
        best.offer((high - low) / steps, low)


def _half(x: Tensor) -> Tensor:
    """Rounded to fp16."""
    return x.clamp(-_LARGEST_HALF, _LARGEST_HALF).to(torch.float16).float()


class _Best:
    """The best codes so far of blocks [blocks, 32]."""

    def __init__(self, values: Tensor, bits: int) -> None:
        self.values, self.bits, self._top = values, bits, (1 << bits) - 1
        self.codes = torch.zeros_like(values)
        self.scale, self.minimum = torch.zeros(len(values), 1), torch.zeros(len(values), 1)
        self._error = torch.full((len(values), 1), float("inf"))
        self._tolerance = _KEPT * values.square().sum(1, keepdim=True)

    def rest(self) -> Tensor:
        """Numbers of the blocks that were not kept."""
        return torch.nonzero((self._error > self._tolerance)[:, 0])[:, 0]

    def offer(self, scale: Tensor, minimum: Tensor) -> None:
        """Take scale and minimum [blocks, 1] where they, in fp16, give less error than before."""
        scale, minimum = _half(scale), _half(minimum)
        codes = self._codes(scale, minimum)
        error = (codes * scale + minimum - self.values).square().sum(1, keepdim=True)
        better = error < self._error
        self._error = torch.where(better, error, self._error)
        self.codes = torch.where(better, codes, self.codes)
        self.scale = torch.where(better, scale, self.scale)
        self.minimum = torch.where(better, minimum, self.minimum)

    def offer_fit(self, share: float) -> None:
        """Offer the range that is `share` of the whole one, then the least squares fit to its codes."""
        low, high = self.values.amin(1, keepdim=True), self.values.amax(1, keepdim=True)
        scale, minimum = (high - low) * share / self._top, (low + high) / 2 - (high - low) * share / 2
        self.offer(scale, minimum)
        codes = self._codes(scale, minimum)
        mean_code, mean = codes.mean(1, keepdim=True), self.values.mean(1, keepdim=True)
        spread = (codes - mean_code).square().sum(1, keepdim=True)
        fit = ((codes - mean_code) * self.values).sum(1, keepdim=True) / spread.clamp(min=1e-9)
        self.offer(fit, mean - fit * mean_code)

    def _codes(self, scale: Tensor, minimum: Tensor) -> Tensor:
        inverse = torch.where(scale == 0, 0.0, 1 / scale)
        return ((self.values - minimum) * inverse).round_().clamp_(0, self._top)
