"""Compare an artifact with the original model, before it is written and at any time later.

Each of several prompts is fed in pieces (a prompt, a chunk, a single token), three ways:

    exact twin      the artifact's graph with an unquantized cache and float products of its weights: must agree to
                    float32 noise. With quantization on top, an error of one position would hide
    before packing  the artifact while it only reads exact pages: what rounding them to float16 costs
    packed          the artifact where it reads packed pages: KL divergence and top-1 agreement

All three are compared with the original holding the artifact's weights; where those are quantized, a fourth number
tells what they cost: the artifact with an unquantized cache against the original with its own weights.

Where the window lies within reach, prompts are longer than it, and the original forgets what the cache forgets.
"""

from __future__ import annotations

from collections.abc import Iterator
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
        weights_kl: what quantized weights cost, in the first tokens; 0 for floats. weights_top1: share of the same
            positions with the same likeliest token.
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
    positions = _positions(length)
    wanted = [original.logits(prompt.ids, positions) for prompt in prompts]
    # Without anything forgotten, the twin does the same at every length.
    twin_length = length if original.forgets(length) else min(length, _TWIN_TOKENS)
    starts = [prompt.ids[:twin_length] for prompt in prompts]
    twin = _float_twin(folder, loaded, cache, twin_length)
    exact_errors = [_error(got, want[: len(got)]) for got, want in _pairs(twin, _Texts(starts, positions, wanted))]
    costs = [(0.0, 1.0)] * len(prompts)
    if quantized is not None:
        with original_weights(loaded.model, quantized):
            unrounded = [original.logits(ids, [at for at in positions if at < twin_length]) for ids in starts]
        costs = _weights_costs(folder, cache, _Texts(starts, positions, unrounded))
    trial = Trial(ir.load(folder / artifact.GRAPH), folder, cache, context=length)
    cases = [_Case(*facts) for facts in zip(prompts, wanted, exact_errors, costs, strict=True)]
    return Report(
        prompts=tuple(_compare(trial, case, positions, cache) for case in cases),
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


@dataclass(frozen=True)
class _Texts:
    """Texts, the positions that are compared, and the logits wanted there."""

    texts: list[tuple[int, ...]]
    positions: tuple[int, ...]
    wanted: list[NDArray[np.float32]]


@dataclass(frozen=True)
class _Case:
    """A prompt, the logits wanted, how far the exact twin was off, and what quantized weights cost (KL, top-1)."""

    prompt: Prompt
    wanted: NDArray[np.float32]
    exact_error: float
    weights: tuple[float, float]


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


def _weights_costs(folder: Path, cache: CacheSpec, texts: _Texts) -> list[tuple[float, float]]:
    """KL and top-1 of each text, with an unquantized cache: what is left is what the weights do."""
    twin = exact_twin(ir.load(folder / artifact.GRAPH), cache)
    trial = Trial(twin, folder, exact_cache(cache), context=len(texts.texts[0]))
    return [_divergence(want, got) for got, want in _pairs(trial, texts)]


def _pairs(trial: Trial, texts: _Texts) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Logits [positions there are, vocab] of each text, and those wanted there."""
    for ids, want in zip(texts.texts, texts.wanted, strict=True):
        yield _fed(trial, ids, texts.positions), want


def _compare(trial: Trial, case: _Case, positions: tuple[int, ...], cache: CacheSpec) -> PromptReport:
    got, want = _fed(trial, case.prompt.ids, positions), case.wanted
    start = first_packed(cache)
    hot = len(got) if start is None else int(np.searchsorted(positions, start))
    packed = hot if hot < len(got) else 0
    kl, top1 = _divergence(want[packed:], got[packed:])
    return PromptReport(
        name=case.prompt.name,
        tokens=len(case.prompt.ids),
        exact_error=case.exact_error,
        hot_error=_rms_error(got[:hot], want[:hot]),
        kl=kl,
        top1=top1,
        packed_pages_read=trial.packed_pages_read,
        weights_kl=case.weights[0],
        weights_top1=case.weights[1],
    )


def _fed(trial: Trial, ids: tuple[int, ...], positions: tuple[int, ...]) -> NDArray[np.float32]:
    """Logits at the positions that the prompt has; it comes in pieces."""
    trial.restart()
    parts = [(ids[a:b], [at - a for at in positions if a <= at < b]) for a, b in pairwise(_cuts(len(ids)))]
    return np.concatenate([trial.step(part, rows) for part, rows in parts])


def _error(got: NDArray[np.float32], want: NDArray[np.float32]) -> float:
    return float(np.abs(got - want).max() / want.std())


def _rms_error(got: NDArray[np.float32], want: NDArray[np.float32]) -> float:
    return float(np.sqrt(np.square(got - want).mean()) / want.std())


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
