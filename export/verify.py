"""Compare an artifact with the original model, before it is written and at any time later.

Each of several prompts is fed in pieces (a prompt, a chunk, a single token), three ways:

    exact twin      the artifact's graph with an unquantized cache and float products of its weights: must agree to
                    float32 noise. With quantization on top, an error of one position would hide
    before packing  the artifact while it only reads exact pages: what rounding them to float16 costs
    packed          the artifact where it reads packed pages: KL divergence and top-1 agreement

All three are compared with the original holding the artifact's weights; where those are quantized, a fourth number
tells what they cost: the artifact before packing against the original with its own weights.

Where the window lies within reach, prompts are longer than it, and the original forgets what the cache forgets.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from kvedge.export.original import Original
from kvedge.export.prompts import Prompt, make_prompts
from kvedge.export.put_floats import put_floats
from kvedge.export.quantize import QuantizedWeights, original_weights
from kvedge.export.source import LoadedModel
from kvedge.export.trial import Trial
from kvedge.export.twin import exact_cache, exact_twin
from kvedge.targets import manifest as artifact
from kvedge.targets.settings import WeightType
from kvedge.targets.spec import CacheSpec

EXACT_TOLERANCE = {WeightType.FP32: 2e-3, WeightType.FP16: 5e-2, WeightType.INT8: 2e-3, WeightType.INT4: 2e-3}
"""Largest |difference| / std(logits) of the exact twin, by how weights are stored.

SmolLM2: 1.5e-4 with float32 weights. A position off by one is 0.1 and more.
"""

HOT_TOLERANCE = {WeightType.FP32: 0.02, WeightType.FP16: 0.02, WeightType.INT8: 0.5, WeightType.INT4: 0.5}
"""Largest rms difference / std(logits) of the artifact before it packs, on top: keys and values in float16 (SmolLM2:
0.0014), and activations rounded to 8 bits where weights are integers (SmolLM2: 0.04 to 0.23)."""

COLLAPSE_KL = 2.0
"""Nats from which on a quantized cache has ruined the model."""

_TWIN_TOKENS = 160
_LONGEST = 768  # tokens of a prompt, only to see a window move on
_MOST_POSITIONS = 256


@dataclass(frozen=True, kw_only=True)
class PromptReport:
    """One prompt.

    Args:
        name: the prompt; tokens: its length.
        exact_error: max |difference| / std(logits) of the exact twin.
        hot_error: rms difference / std(logits) of the artifact, at positions that read no packed page.
        kl: mean KL divergence from the original in nats, at positions that may read packed pages (at all, where
            nothing is ever packed); top1: share of them with the same likeliest token.
        packed_pages_read: by all layers.
        weights_kl: what quantized weights cost, in nats, at positions that read no packed page; 0 for floats.
            weights_top1: share of them with the same likeliest token.
    """

    name: str
    tokens: int
    exact_error: float
    hot_error: float
    kl: float
    top1: float
    packed_pages_read: int
    weights_kl: float
    weights_top1: float


@dataclass(frozen=True, kw_only=True)
class Report:
    """How an artifact compares with its original.

    Args:
        prompts: one report each.
        exact_tolerance: what the exact twin may differ by; hot_tolerance: what the artifact may before it packs.
        weights_kept: share of the weights whose blocks were those of the original; 0 for floats.
        forgets: whether prompts were longer than a window.
    """

    prompts: tuple[PromptReport, ...]
    exact_tolerance: float
    hot_tolerance: float
    weights_kept: float
    forgets: bool

    @property
    def exact_error(self) -> float:
        """Of the worst prompt."""
        return max(prompt.exact_error for prompt in self.prompts)

    @property
    def hot_error(self) -> float:
        """Of the worst prompt."""
        return max(prompt.hot_error for prompt in self.prompts)

    @property
    def kl(self) -> float:
        """Of the worst prompt."""
        return max(prompt.kl for prompt in self.prompts)

    @property
    def top1(self) -> float:
        """Of the worst prompt."""
        return min(prompt.top1 for prompt in self.prompts)

    @property
    def weights_kl(self) -> float:
        """Of the worst prompt."""
        return max(prompt.weights_kl for prompt in self.prompts)

    @property
    def weights_top1(self) -> float:
        """Of the worst prompt."""
        return min(prompt.weights_top1 for prompt in self.prompts)

    @property
    def packed_pages_read(self) -> int:
        """Over all prompts."""
        return sum(prompt.packed_pages_read for prompt in self.prompts)

    @property
    def structure_problems(self) -> tuple[str, ...]:
        """Where the graph is wrong, whatever the bits of its cache: a line each, none if it is right."""
        return tuple(
            line
            for prompt in self.prompts
            for line in (
                *_excess(prompt, "unquantized, max |difference| / std", prompt.exact_error, self.exact_tolerance),
                *_excess(prompt, "before packing, rms |difference| / std", prompt.hot_error, self.hot_tolerance),
            )
        )

    @property
    def problems(self) -> tuple[str, ...]:
        """All that disagrees: a line each, none if the artifact is right."""
        what = "packed, KL divergence in nats"
        collapsed = [line for prompt in self.prompts for line in _excess(prompt, what, prompt.kl, COLLAPSE_KL)]
        return (*self.structure_problems, *collapsed)


def _excess(prompt: PromptReport, what: str, got: float, most: float) -> list[str]:
    fine = got <= most  # not where it is no number
    return [] if fine else [f"{prompt.name}: {what}: expected at most {most:g}, got {got:.2g}"]


def verify_artifact(
    folder: Path,
    loaded: LoadedModel,
    cache: CacheSpec,
    weights: WeightType,
    quantized: QuantizedWeights | None = None,
) -> Report:
    """Compare the graph in a folder, stamped with `cache`, with the original.

    Args:
        folder: holds graph and weights; nothing is written there.
        loaded: the original, its weights quantized as those of the graph.
        cache: what the graph was stamped with.
        weights: how weights are stored; quantized: where they are in blocks.
    """
    original = Original(loaded, cache)
    prompts = make_prompts(loaded, prompt_length(cache, original.reach))
    length = len(prompts[0].ids)
    comparison = _Comparison(folder, original, cache, quantized, length)
    return Report(
        prompts=tuple(comparison.of(prompt) for prompt in prompts),
        exact_tolerance=EXACT_TOLERANCE[weights],
        hot_tolerance=HOT_TOLERANCE[weights] + EXACT_TOLERANCE[weights],
        weights_kept=quantized.kept if quantized else 0.0,
        forgets=original.forgets(length),
    )


def prompt_length(cache: CacheSpec, reach: int) -> int:
    """Tokens after which packed pages have been read, and a window within reach has moved on by some pages.

    `reach` are the tokens up to which the original needs no help to see what the cache keeps.
    """
    packing = max(rules.sinks + rules.recent + 3 * rules.page for rules in cache.groups)
    moving = [rules.sinks + rules.window + 3 * rules.page for rules in cache.groups if rules.window is not None]
    wanted = max([packing, *(length for length in moving if length <= _LONGEST)])
    return min(wanted, max(reach, _LONGEST), cache.max_positions)


def first_packed(cache: CacheSpec) -> int | None:
    """Position of the first token that reads a packed page; None where nothing is ever packed."""
    return min((rules.sinks + rules.recent + rules.page for rules in cache.groups if rules.packs), default=None)


class _Comparison:
    """An artifact's graphs beside the original, for prompts of one length: only one prompt's logits are ever held."""

    def __init__(
        self, folder: Path, original: Original, cache: CacheSpec, quantized: QuantizedWeights | None, length: int
    ) -> None:
        self._original, self._cache, self._quantized = original, cache, quantized
        self._positions = _positions(length)
        # Without anything forgotten, the twin does the same at every length.
        self._twin_length = length if original.forgets(length) else min(length, _TWIN_TOKENS)
        self._twin = _float_twin(folder, original.loaded, cache, self._twin_length)
        self._trial = Trial(ir.load(folder / artifact.GRAPH), folder, cache, context=length)

    def of(self, prompt: Prompt) -> PromptReport:
        wanted = self._original.logits(prompt.ids, self._positions)
        exact_error = self._exact_error(prompt, wanted)
        got, packed = _fed(self._trial, prompt.ids, self._positions), self._first_packed(len(wanted))
        hot = packed or len(wanted)
        kl, top1 = _divergence(wanted[packed:], got[packed:])
        hot_error, got = _rms_error(got[:hot], wanted[:hot]), got[:hot]
        weights_kl, weights_top1 = self._weights_cost(prompt, wanted[:hot], got)
        return PromptReport(
            name=prompt.name,
            tokens=len(prompt.ids),
            exact_error=exact_error,
            hot_error=hot_error,
            kl=kl,
            top1=top1,
            packed_pages_read=self._trial.packed_pages_read,
            weights_kl=weights_kl,
            weights_top1=weights_top1,
        )

    def _exact_error(self, prompt: Prompt, wanted: NDArray[np.float32]) -> float:
        got = _fed(self._twin, prompt.ids[: self._twin_length], self._positions)
        return _error(got, wanted[: len(got)])

    def _weights_cost(
        self, prompt: Prompt, wanted: NDArray[np.float32], got: NDArray[np.float32]
    ) -> tuple[float, float]:
        """KL and top-1 where only exact pages are read: what is left is what the weights do."""
        if self._quantized is None:
            return 0.0, 1.0
        if self._quantized.originals:
            positions = self._positions[: len(got)]
            with original_weights(self._original.loaded.model, self._quantized):
                wanted = self._original.logits(prompt.ids[: positions[-1] + 1], positions)
        return _divergence(wanted, got)

    def _first_packed(self, positions: int) -> int:
        """The first compared position that reads packed pages; 0 where none does."""
        start = first_packed(self._cache)
        first = positions if start is None else int(np.searchsorted(self._positions, start))
        return first if first < positions else 0


def _positions(length: int) -> tuple[int, ...]:
    """Positions to compare: all, or so many of them that logits of large vocabularies fit into memory."""
    spread = np.linspace(0, length - 1, min(length, _MOST_POSITIONS)).round()
    return tuple(sorted({int(position) for position in spread} | {at - 1 for at in _cuts(length)[1:]}))


def _cuts(length: int) -> list[int]:
    """Where prompts are cut: in a prompt, a chunk and a single token."""
    return sorted({0, length // 2, max(0, length - 1), length})


def _float_twin(folder: Path, loaded: LoadedModel, cache: CacheSpec, context: int) -> Trial:
    twin = exact_twin(ir.load(folder / artifact.GRAPH), cache)
    known = {name: parameter.detach().numpy() for name, parameter in loaded.model.named_parameters()}
    return Trial(twin, folder, exact_cache(cache), context=context, fed=put_floats(twin, known))


def _fed(trial: Trial, ids: tuple[int, ...], positions: tuple[int, ...]) -> NDArray[np.float32]:
    """Logits at the positions that the prompt has; it comes in pieces."""
    trial.restart()
    logits: NDArray[np.float32] | None = None
    filled = 0
    for first, last in pairwise(_cuts(len(ids))):
        rows = [at - first for at in positions if first <= at < last]
        some = trial.step(ids[first:last], rows)
        if logits is None:
            logits = np.empty((sum(at < len(ids) for at in positions), some.shape[1]), np.float32)
        logits[filled : filled + len(some)] = some
        filled += len(some)
    assert logits is not None
    return logits


def _error(got: NDArray[np.float32], want: NDArray[np.float32]) -> float:
    difference = got - want
    return float(max(difference.max(), -difference.min()) / _std(want))


def _rms_error(got: NDArray[np.float32], want: NDArray[np.float32]) -> float:
    difference = (got - want).ravel()
    return float(np.sqrt(np.dot(difference, difference) / difference.size) / _std(want))


def _std(logits: NDArray[np.float32]) -> float:
    """Row by row, as np.std makes copies."""
    mean = float(logits.mean())
    return float(np.sqrt(np.mean([np.square(row - mean).mean() for row in logits])))


def _divergence(want: NDArray[np.float32], got: NDArray[np.float32]) -> tuple[float, float]:
    """Mean KL divergence and top-1 agreement."""
    kl = [_kl(p, q) for p, q in zip(want, got, strict=True)]
    return float(np.mean(kl)), float((want.argmax(-1) == got.argmax(-1)).mean())


def _kl(want: NDArray[np.float32], got: NDArray[np.float32]) -> float:
    p, q = (_log_softmax(x.astype(np.float64)) for x in (want, got))
    return float((np.exp(p) * (p - q)).sum())


def _log_softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = x - x.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))
