"""Rotary embeddings become graph inputs: cos and sin are computed outside, in float64.

A rotary module turns positions into cos and sin. While the model is traced each one is replaced by a module
that returns graph inputs instead, laid out as the model expects. What the model then does with them (which
channels it pairs, which layers it turns at all) is found out by comparing the queries and keys of a probe at
different positions: q at position p must be q at position 0, turned by p times the frequencies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from kvedge.export.attention import Probe
from kvedge.targets.errors import KvedgeError
from kvedge.targets.spec import RopeSpec

_BUFFER = "inv_freq"
_SAMPLE_POSITIONS = (0, 1, 2, 5)
_ROTATION_TOLERANCE = 2e-4  # float32 queries of trained models, relative to their largest value


class Layout(Enum):
    """How a rotary module spreads the values of its pairs over the last axis of cos and sin."""

    HALVES = "cat(x, x)"
    NEIGHBOURS = "repeat_interleave(x, 2)"
    PAIRS = "x"

    def spread(self, values: Tensor) -> Tensor:
        """Lay out [..., pairs] as the model expects it."""
        if self is Layout.HALVES:
            return torch.cat((values, values), dim=-1)
        if self is Layout.NEIGHBOURS:
            return torch.stack((values, values), dim=-1).flatten(-2)
        return values


@dataclass(frozen=True, kw_only=True)
class RotarySource:
    """One set of frequencies of one rotary module.

    Args:
        paths: names of the module in the model (several where it is shared).
        layer_type: what the model passes to pick this set, None where the module has one set only.
        inv_freq: float32 [pairs].
        probed: float32 [pairs], the same for short texts (they differ in longrope only).
        attention_scaling: factor on cos and sin.
        layout: how the module lays out its result.
    """

    paths: tuple[str, ...]
    layer_type: str | None
    inv_freq: Tensor
    probed: Tensor
    attention_scaling: float
    layout: Layout

    def spec(self, interleaved: bool) -> RopeSpec:
        frequencies = tuple(self.inv_freq.tolist())
        return RopeSpec(inv_freq=frequencies, attention_scaling=self.attention_scaling, interleaved=interleaved)


@dataclass(frozen=True)
class Ropes:
    """The rotary embeddings of a model.

    Args:
        specs: the distinct ones; number r is fed by cos.{r} and sin.{r}.
        layer_rope: number that each layer uses, None for layers without.
        feeds: for each source the number that feeds it; sources that no layer uses have none.
    """

    specs: tuple[RopeSpec, ...]
    layer_rope: tuple[int | None, ...]
    feeds: tuple[tuple[RotarySource, int], ...]


@dataclass
class Feed:
    """The traced inputs: cos and sin [B, N, pairs] of each rope number."""

    cos: list[Tensor] = field(default_factory=list)
    sin: list[Tensor] = field(default_factory=list)


def find_sources(model: nn.Module, max_positions: int | None) -> tuple[RotarySource, ...]:
    """List the rotary embeddings of `model`.

    Args:
        max_positions: positions that will ever be told apart (window and sinks); chooses longrope's factors.

    Raises:
        KvedgeError: dynamic NTK, longrope without `max_positions`, or a module of another form.
    """
    by_module: dict[nn.Module, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if any(_layer_types(module)):
            by_module.setdefault(module, []).append(path)
    return tuple(
        _read_source(module, tuple(paths), layer_type, max_positions)
        for module, paths in by_module.items()
        for (layer_type,) in _layer_types(module)
    )


def _layer_types(module: nn.Module) -> list[tuple[str | None]]:
    """List the frequency sets of a module, each in a tuple because None is a name too."""
    found: list[tuple[str | None]] = []
    for name, _ in module.named_buffers(recurse=False):
        if name == _BUFFER:
            found.append((None,))
        elif name.endswith(f"_{_BUFFER}") and not name.endswith(f"original_{_BUFFER}"):
            found.append((name.removesuffix(f"_{_BUFFER}"),))
    return found


def _read_source(
    module: nn.Module, paths: tuple[str, ...], layer_type: str | None, max_positions: int | None
) -> RotarySource:
    prefix = "" if layer_type is None else f"{layer_type}_"
    rope_type: Any = getattr(module, "rope_type", "default")
    rope_type = rope_type if layer_type is None else rope_type[layer_type]
    if "dynamic" in rope_type:
        raise KvedgeError(
            f"{paths[0]} is dynamic NTK: its frequencies change with the length, and cached keys with them",
            expected="a rotary embedding with fixed frequencies",
            fix="set another rope_type in the model's config (yarn or linear), or use another checkpoint",
        )
    inv_freq = getattr(module, f"{prefix}original_{_BUFFER}", getattr(module, f"{prefix}{_BUFFER}")).detach().float()
    scaling = float(getattr(module, f"{prefix}attention_scaling", 1.0))
    layout = _find_layout(module, paths[0], layer_type, inv_freq, scaling)
    chosen = inv_freq
    if rope_type == "longrope":
        chosen = _choose_longrope(module, paths[0], layer_type, inv_freq, max_positions)
    return RotarySource(
        paths=paths,
        layer_type=layer_type,
        inv_freq=chosen,
        probed=inv_freq,
        attention_scaling=scaling,
        layout=layout,
    )


def _find_layout(module: nn.Module, path: str, layer_type: str | None, inv_freq: Tensor, scaling: float) -> Layout:
    """Compare the module's own cos and sin with every layout."""
    positions = torch.tensor([_SAMPLE_POSITIONS])
    extra = () if layer_type is None else (layer_type,)
    try:
        with torch.no_grad():
            result = module(torch.zeros(1, len(_SAMPLE_POSITIONS), 2), positions, *extra)
    except Exception as error:
        raise _unknown_rotary(path, f"an error on text positions: {str(error)[:200]}") from error
    angles = positions[..., None].float() * inv_freq
    cos, sin = angles.cos() * scaling, angles.sin() * scaling
    for layout in Layout:
        if _equal_pair(result, (layout.spread(cos), layout.spread(sin))):
            return layout
    raise _unknown_rotary(path, "other values")


def _equal_pair(result: object, expected: tuple[Tensor, Tensor]) -> bool:
    return (
        isinstance(result, tuple)
        and len(result) == 2
        and all(a.shape == b.shape and torch.allclose(a, b, atol=1e-6) for a, b in zip(result, expected, strict=True))
    )


def _unknown_rotary(path: str, got: str) -> KvedgeError:
    return KvedgeError(
        f"{path} is a rotary embedding of a form that kvedge does not know",
        expected="cos and sin of position * inv_freq, scaled, [batch, tokens, pairs or 2 * pairs]",
        got=got,
        fix="no export for it yet",
    )


def _choose_longrope(
    module: nn.Module, path: str, layer_type: str | None, short: Tensor, max_positions: int | None
) -> Tensor:
    """Return the short or the long frequencies, as the model would for a text of `max_positions`."""
    config: Any = module.config
    parameters = config.rope_parameters
    parameters = parameters if layer_type is None else parameters[layer_type]
    original = int(parameters["original_max_position_embeddings"])
    if max_positions is None:
        raise KvedgeError(
            f"{path} is longrope: its factors depend on the length",
            expected=f"a chosen length (short factors up to {original} positions, long ones above)",
            fix="give the window (window and sinks count), or a maximal length",
        )
    if max_positions <= original:
        return short
    initialise = ROPE_INIT_FUNCTIONS["longrope"]
    long, _ = initialise(config, short.device, seq_len=original + 1, layer_type=layer_type)
    return long.detach().float()


def match_ropes(sources: Sequence[RotarySource], probe: Probe) -> Ropes:
    """Find the rotary embedding of each layer from its queries and keys in the probe.

    Raises:
        KvedgeError: a layer's queries depend on position in another way.
    """
    specs: list[RopeSpec] = []
    layer_rope: list[int | None] = []
    feeds: list[tuple[RotarySource, int]] = []
    for layer in sorted(probe.calls):
        call = probe.calls[layer]
        if _is_constant(call.q) and _is_constant(call.k):
            layer_rope.append(None)
            continue
        source, spec = _match_layer(layer, call.q, call.k, sources)
        if spec not in specs:
            specs.append(spec)
        layer_rope.append(specs.index(spec))
        if not any(source is fed for fed, _ in feeds):
            feeds.append((source, specs.index(spec)))
    return Ropes(tuple(specs), tuple(layer_rope), tuple(feeds))


def _match_layer(layer: int, q: Tensor, k: Tensor, sources: Sequence[RotarySource]) -> tuple[RotarySource, RopeSpec]:
    for source in sources:
        for interleaved in (False, True):
            if _is_rotation(q, source.probed, interleaved) and _is_rotation(k, source.probed, interleaved):
                return source, source.spec(interleaved)
    raise KvedgeError(
        f"queries and keys of attention layer {layer} depend on position in a way that kvedge does not know",
        expected="a rotary embedding of the first channels of each head, norms before it",
        fix="no export for it yet",
    )


def _is_constant(x: Tensor) -> bool:
    return _close(x[0], x[0, :, :1], x)


def _is_rotation(x: Tensor, inv_freq: Tensor, interleaved: bool) -> bool:
    """Whether x[0, heads, position] is x[0, heads, 0] turned by each position; x: [2, heads, tokens, D]."""
    if 2 * len(inv_freq) > x.shape[-1]:
        return False
    angles = torch.arange(x.shape[2])[:, None].double() * inv_freq.double()
    return _close(x[0], rotate(x[0, :, :1].double(), angles.cos(), angles.sin(), interleaved), x)


def _close(a: Tensor, b: Tensor, scale_of: Tensor) -> bool:
    return bool((a - b).abs().max() <= _ROTATION_TOLERANCE * scale_of.abs().max())


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Turn the first 2 * pairs channels of x [..., D] by cos and sin [..., pairs]; the rest stays."""
    pairs = cos.shape[-1]
    turned, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    a, b = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.chunk(2, dim=-1)
    parts = (a * cos - b * sin, b * cos + a * sin)
    joined = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
    return torch.cat((joined, rest.expand(*joined.shape[:-1], rest.shape[-1])), -1)


class _FedRotary(nn.Module):
    """Stands in for a rotary module: returns the fed cos and sin, laid out."""

    def __init__(self, feed: Feed, choices: dict[str | None, tuple[int, Layout]]) -> None:
        super().__init__()
        self._feed = feed
        self._choices = choices

    def forward(
        self, x: Tensor, position_ids: Tensor | None = None, layer_type: str | None = None
    ) -> tuple[Tensor, ...]:
        # A set that no layer uses may be asked for all the same: any values will do.
        rope, layout = self._choices.get(layer_type) or next(iter(self._choices.values()))
        return layout.spread(self._feed.cos[rope]), layout.spread(self._feed.sin[rope])


@contextmanager
def fed_rotaries(model: nn.Module, ropes: Ropes) -> Iterator[Feed]:
    """Replace the rotary modules of `model` while the context lasts; fill the feed before each forward."""
    feed = Feed()
    choices: dict[tuple[str, ...], dict[str | None, tuple[int, Layout]]] = {}
    for source, rope in ropes.feeds:
        choices.setdefault(source.paths, {})[source.layer_type] = (rope, source.layout)
    replaced = [(path, model.get_submodule(path)) for paths in choices for path in paths]
    try:
        for paths, options in choices.items():
            for path in paths:
                model.set_submodule(path, _FedRotary(feed, options))
        yield feed
    finally:
        for path, module in replaced:
            model.set_submodule(path, module)
