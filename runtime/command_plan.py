"""`kvedge plan`."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path

import click

from kvedge.runtime import show
from kvedge.runtime.layer_groups import group_alike, number_ranges
from kvedge.runtime.limits import step_limits
from kvedge.runtime.plan_source import Source, find_model
from kvedge.runtime.target_text import fit_lines, fit_record
from kvedge.runtime.technique_table import technique_table
from kvedge.runtime.techniques import Technique, list_techniques, without_window
from kvedge.targets.devices import EngineKind, Target, find_target
from kvedge.targets.errors import require
from kvedge.targets.fit import Fit
from kvedge.targets.kinds import Kind
from kvedge.targets.manifest import Manifest
from kvedge.targets.model_config import make_cache
from kvedge.targets.packing import lane_words
from kvedge.targets.plan import DEFAULT_CHUNK, LayerPlan, MemoryPlan, largest_context, plan_memory
from kvedge.targets.profiles import limits_plan
from kvedge.targets.settings import CacheSettings, WeightType, parse_layer_kinds
from kvedge.targets.spec import (
    DEFAULT_KIND,
    DEFAULT_PAGE,
    DEFAULT_RECENT,
    DEFAULT_SINKS,
    CacheSpec,
    LayerSpec,
)
from kvedge.targets.units import parse_size, size
from kvedge.targets.weight_sizes import WeightSizes, artifact_weights

_EXAMPLES = """
\b
Examples:
  kvedge plan ./my-model-int3                         what an artifact takes
  kvedge plan ./my-model --kv int3 --window 4096      before you export
  kvedge plan HuggingFaceTB/SmolLM2-135M-Instruct     a hub model on this machine
  kvedge plan model.gguf --kv int4 --memory 2GB       how long a context fits
  kvedge plan ./my-model --target jetson-orin-nano    does it fit that board, and how fast can it be
"""

_FORMULA = "layers x (hot pages x 2 x kv heads x page x head dim x bytes + packed pages x packed page)"
_PACKED = "packed page = kv heads x ((k bits + v bits) x page x head dim / 8 + 4 x page + 2 x head dim)"


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """Options that shape a cache, as given; None where they were not."""

    kv: str | None
    kv_layer: tuple[str, ...] | None
    window: int | None
    sinks: int | None
    recent: int | None
    page: int | None
    weights: str | None


@dataclass(frozen=True, kw_only=True)
class _Planned:
    """A plan and what goes with it.

    Args:
        whole: the planned cache without a window, but for those that are part of the model.
        memory: bytes that may be used, None for no limit.
        fit: the same on the target that was named, None where none was.
        engine: of the artifact, or of the target, or else that of the CPU.
    """

    model: str
    engine: EngineKind
    plan: MemoryPlan
    whole: CacheSpec
    weights: WeightSizes | None
    memory: int | None
    fit: Fit | None

    @property
    def techniques(self) -> list[Technique]:
        """Other caches in this one's place: of the kinds that the target reads, and the planned one's."""
        asked = {layer.kind for layer in self.plan.cache.layers}
        kinds = [kind for kind in Kind if self.fit is None or kind in self.fit.target.kinds or kind in asked]
        return list_techniques(self.plan, self.whole, self.left, kinds)

    @property
    def loaded(self) -> int | None:
        """Bytes of the weights in memory, None where nobody knows."""
        if self.fit:
            return self.fit.weights
        if self.weights is None:
            return None
        return self.weights.loaded if self.engine is EngineKind.ORT_CPU else self.weights.stored

    @property
    def kv_bytes(self) -> int:
        """Bytes of the pools, as often as the engine keeps them."""
        return self.engine.pools * self.plan.kv_bytes

    @property
    def budget(self) -> int | None:
        """Bytes for all that kvedge needs, None for no limit."""
        return self.fit.available if self.fit else self.memory

    @property
    def left(self) -> int | None:
        """Bytes for the cache beside the rest; None without a budget."""
        if self.fit:
            return self.fit.left_for_pools
        return None if self.memory is None else max(0, self.memory - (self.loaded or 0))


@dataclass(frozen=True, kw_only=True)
class _Device:
    """Where the plan is to run, as far as it was named.

    Args:
        target: the device; memory: bytes that may be used; bandwidth: bytes per second of its memory.
    """

    target: Target | None
    memory: int | None
    bandwidth: int | None

    @classmethod
    def parse(cls, target: str | None, memory: str | None, bandwidth: str | None) -> _Device:
        """From options.

        Raises:
            KvedgeError: an unknown target, no size, or a bandwidth of nothing.
        """
        alone = target is None and bandwidth is not None
        require(not alone, "--bandwidth", expected="a target that it is of", got="none", fix="name one with --target")
        rate = None if bandwidth is None else parse_size("--bandwidth", bandwidth)
        require(rate != 0, "--bandwidth", expected="more than 0 bytes a second", got=bandwidth)
        return cls(
            target=None if target is None else find_target(target),
            memory=None if memory is None else parse_size("--memory", memory),
            bandwidth=rate,
        )

    def fit(self, plan: MemoryPlan, weights: WeightSizes | None, found: Manifest | Source) -> Fit | None:
        """The plan there; None without a target."""
        if self.target is None:
            return None
        bandwidth = self.target.bandwidth if self.bandwidth is None else self.bandwidth
        return Fit(
            target=self.target,
            plan=plan,
            sizes=weights,
            memory=self.memory,
            bandwidth=bandwidth,
            manifest=found if isinstance(found, Manifest) else None,
        )


@click.command(epilog=_EXAMPLES)
@click.argument("model")
@click.option("--kv", help=f"KV cache: {', '.join(k.value for k in Kind)}.  [default: {DEFAULT_KIND.value}]")
@click.option("--kv-layer", multiple=True, metavar="LAYERS=KV", help="Another kind for some layers, as in export.")
@click.option("--window", type=int, help="Keys that a token sees besides the sinks; without it nothing is forgotten.")
@click.option("--sinks", type=int, help=f"First tokens, never forgotten, kept exact.  [default: {DEFAULT_SINKS}]")
@click.option("--recent", type=int, help=f"Newest tokens, kept exact.  [default: {DEFAULT_RECENT}]")
@click.option("--page", type=int, help=f"Tokens a page.  [default: {DEFAULT_PAGE}]")
@click.option(
    "--weights",
    type=click.Choice([w.value for w in WeightType]),
    help="Stored weights.  [default: fp32, or the target's]",
)
@click.option("--ctx", type=int, help="Tokens of a session without a window.  [default: the model's positions]")
@click.option("--sessions", type=click.IntRange(min=1), help="Conversations at a time.  [default: 1]")
@click.option("--chunk", type=click.IntRange(min=1), help=f"Tokens a step.  [default: {DEFAULT_CHUNK}]")
@click.option("--memory", help="Memory to fit into, such as 2GB: prints the largest context. A target may have less.")
@click.option("--target", help="Device to run on, see `kvedge targets`: what fits its memory, how fast it can decode.")
@click.option(
    "--bandwidth", help="Bytes a second that the target's memory can give, such as 68GB.  [default: the target's]"
)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def plan(
    model: str,
    kv: str | None,
    kv_layer: tuple[str, ...],
    window: int | None,
    sinks: int | None,
    recent: int | None,
    page: int | None,
    weights: str | None,
    ctx: int | None,
    sessions: int | None,
    chunk: int | None,
    memory: str | None,
    target: str | None,
    bandwidth: str | None,
    as_json: bool,
) -> None:
    """Memory that MODEL takes, before you run or even download it.

    MODEL is an artifact folder, a Hugging Face folder, a .gguf file, or a hub id in the local cache; config.json and
    file headers are enough. The engine's own working memory comes on top: --target estimates it, `bench` measures it.
    """
    device = _Device.parse(target, memory, bandwidth)
    asked = _Asked(
        kv=kv, kv_layer=kv_layer or None, window=window, sinks=sinks, recent=recent, page=page, weights=weights
    )
    with show.spinner(f"reading {model}"):
        found = find_model(model)
    cache, whole, taken = _caches_of(found, asked, device.target)
    made = _pools_of(found, cache, (ctx, chunk, sessions))
    planned = _Planned(
        model=_name(found, model),
        engine=_engine(found, device.target),
        plan=made,
        whole=whole,
        weights=taken,
        memory=device.memory,
        fit=device.fit(made, taken, found),
    )
    print(json.dumps(_record(planned)) if as_json else _text(planned))


def _caches_of(
    found: Manifest | Source, asked: _Asked, target: Target | None
) -> tuple[CacheSpec, CacheSpec, WeightSizes | None]:
    """The cache to plan, the same without a window, and the weights."""
    if isinstance(found, Manifest):
        _refuse_choices(asked)
        return found.cache, without_window(found.cache), artifact_weights(found)
    settings = CacheSettings(
        kind=DEFAULT_KIND if asked.kv is None else Kind.parse(asked.kv),
        window=asked.window,
        sinks=DEFAULT_SINKS if asked.sinks is None else asked.sinks,
        recent=DEFAULT_RECENT if asked.recent is None else asked.recent,
        page=DEFAULT_PAGE if asked.page is None else asked.page,
        layer_kinds=parse_layer_kinds(asked.kv_layer or ()),
    )
    cache, whole = (make_cache(found.config, each) for each in (settings, replace(settings, window=None)))
    usual = target.weights[0] if target else WeightType.FP32
    return cache, whole, found.weights(usual if asked.weights is None else WeightType(asked.weights))


def _refuse_choices(asked: _Asked) -> None:
    given = [f"--{field.name.replace('_', '-')}" for field in fields(asked) if getattr(asked, field.name) is not None]
    require(
        not given,
        "the cache of an artifact is fixed",
        expected="none of the options that shape it",
        got=", ".join(given),
        fix="leave them out, or plan the original model",
    )


def _pools_of(
    found: Manifest | Source, cache: CacheSpec, sizes: tuple[int | None, int | None, int | None]
) -> MemoryPlan:
    """Pools of the sizes that were asked for (context, chunk, sessions), or that the artifact's engine has."""
    ctx, chunk, sessions = sizes
    if isinstance(found, Manifest) and found.limits is not None:
        return limits_plan(cache, step_limits(found, context=ctx, sessions=sessions, chunk=chunk))
    return plan_memory(cache, context=_context(cache, ctx), chunk=chunk or DEFAULT_CHUNK, sessions=sessions or 1)


def _engine(found: Manifest | Source, target: Target | None) -> EngineKind:
    if isinstance(found, Manifest):
        return found.engine
    return target.engine if target else EngineKind.ORT_CPU


def _context(cache: CacheSpec, asked: int | None) -> int:
    limit = cache.max_positions
    fine = asked is None or 0 < asked <= limit
    require(fine, "--ctx", expected=f"1 to the model's {limit} positions", got=asked)
    return limit if asked is None else asked


def _name(found: Manifest | Source, model: str) -> str:
    if isinstance(found, Manifest):
        return f"{Path(model).resolve().name} ({found.model.name}, {found.model.model_type})"
    return f"{found.config.name} ({found.config.model_type})"


def _groups(plan: MemoryPlan) -> list[list[LayerPlan]]:
    """Layers of the same shape and rules together, in order of first use."""
    return group_alike(plan.layers, lambda layer: _alike(layer.layer))


def _alike(layer: LayerSpec) -> tuple[object, ...]:
    return layer.rules, layer.kind, layer.heads, layer.kv_heads, layer.head_dim


def _formula(group: list[LayerPlan], sessions: int) -> str:
    """The bytes of a group written out: plain arithmetic, so that it can be checked."""
    first, layer = group[0], group[0].layer
    rules, kind = layer.rules, layer.kind
    shape = f"{layer.kv_heads} x {rules.page} x {layer.head_dim}"
    inner = f"{first.hot_pages // sessions} x 2 x {shape} x {kind.hot_dtype.itemsize}"
    if first.packed_pages:
        k_codes = f"{rules.page} x {4 * lane_words(kind.k_bits, layer.head_dim)}"
        v_codes = f"{layer.head_dim} x {4 * lane_words(kind.v_bits, rules.page)}"
        packed_page = f"{layer.kv_heads} x ({k_codes} + {v_codes} + 4 x {rules.page} + 2 x {layer.head_dim})"
        inner += f" + {first.packed_pages // sessions} x {packed_page}"
    times = f"{len(group)} x ({inner})"
    return times if sessions == 1 else f"{sessions} x {times}"


def _group_bytes(group: list[LayerPlan]) -> int:
    return sum(layer.hot_bytes + layer.packed_bytes for layer in group)


def _ranges(group: list[LayerPlan]) -> str:
    """Layer numbers: 0-4, 6-10."""
    return number_ranges([layer.layer.index for layer in group])


def _bits_per_value(layer: LayerPlan) -> float:
    """Bits of a stored key or value: packed with its share of scales and mean, or as it is."""
    return layer.layer.packed_layout.bits_per_value if layer.packed_pages else 8 * layer.layer.kind.hot_dtype.itemsize


def _total(planned: _Planned) -> int | None:
    return None if planned.loaded is None else planned.loaded + planned.kv_bytes


def _largest(planned: _Planned) -> int | None:
    """Most tokens a session whose cache fits the budget beside the weights; None without a budget."""
    left, plan = planned.left, planned.plan
    if left is None:
        return None
    return largest_context(plan.cache, left, chunk=plan.chunk, sessions=plan.sessions)


def _record(planned: _Planned) -> dict[str, object]:
    plan, weights = planned.plan, planned.weights
    return {
        "model": planned.model,
        "context": None if plan.cache.is_endless else plan.context,
        "chunk": plan.chunk,
        "sessions": plan.sessions,
        "layers": [_group_record(group, plan.sessions) for group in _groups(plan)],
        "weights_stored_bytes": weights and weights.stored,
        "weights_loaded_bytes": planned.loaded,
        "weights_basis": weights and weights.basis,
        "hot_bytes": plan.hot_bytes,
        "packed_bytes": plan.packed_bytes,
        "engine": planned.engine.value,
        "kv_bytes": planned.kv_bytes,
        "total_bytes": _total(planned),
        "fp16_kv_bytes": plan.fp16_bytes,
        "visible_tokens": plan.visible_tokens,
        "memory_bytes": planned.budget,
        "largest_context": _largest(planned),
        "endless": plan.cache.is_endless,
        "techniques": [_technique_record(each) for each in planned.techniques],
        "target": planned.fit and fit_record(planned.fit),
    }


def _technique_record(technique: Technique) -> dict[str, object]:
    return {
        "kind": technique.kind and technique.kind.value,
        "plain": technique.kind is None,
        "window": technique.window,
        "sinks": technique.sinks,
        "bits_per_value": technique.bits,
        "kv_bytes": technique.kv_bytes,
        "largest_context": technique.largest_context,
        "endless": technique.endless,
        "this": technique.is_this,
    }


def _group_record(group: list[LayerPlan], sessions: int) -> dict[str, object]:
    layer = group[0].layer
    return {
        "layers": [plan.layer.index for plan in group],
        "kind": layer.kind.value,
        "heads": layer.heads,
        "kv_heads": layer.kv_heads,
        "head_dim": layer.head_dim,
        "window": layer.rules.window,
        "sinks": layer.rules.sinks,
        "recent": layer.rules.recent,
        "page": layer.rules.page,
        "hot_pages": group[0].hot_pages,
        "packed_pages": group[0].packed_pages,
        "bits_per_value": _bits_per_value(group[0]),
        "bytes": _group_bytes(group),
        "formula": _formula(group, sessions),
    }


_TWICE = {1: "", 2: "two of each pool; "}


def _text(planned: _Planned) -> str:
    plan, weights = planned.plan, planned.weights
    session = "session" if plan.sessions == 1 else "sessions"
    length = "endless" if plan.cache.is_endless else f"at most {plan.context} tokens"
    lines = [f"{planned.model}: {plan.sessions} {session}, {length}, {plan.chunk} new tokens a step", ""]
    lines += [f"KV cache = {'' if plan.sessions == 1 else 'sessions x '}{_FORMULA}"]
    lines += [f"           {_PACKED}"] if plan.packed_bytes else []
    lines += [line for group in _groups(plan) for line in _group_lines(group, plan.sessions)]
    rows = [
        ("weights", planned.loaded, _weights_note(weights, planned.loaded)),
        ("hot pool", plan.hot_bytes, "sinks and newest tokens, unpacked"),
        (
            "packed pool",
            plan.packed_bytes,
            "all other tokens" if plan.packed_bytes else "nothing is ever packed",
        ),
        (
            "KV cache",
            planned.kv_bytes,
            f"{_TWICE[planned.engine.pools]}in fp16 {size(plan.fp16_bytes)} for {plan.visible_tokens} visible tokens",
        ),
        ("total", _total(planned), "without the engine's own working memory"),
    ]
    lines += [
        "",
        *(f"{name:12}{'unknown' if value is None else size(value):>10}  {note}" for name, value, note in rows),
    ]
    on_target = ["", *fit_lines(planned.fit)] if planned.fit else []
    table = technique_table(planned.techniques, plan.context)
    return "\n".join([*lines, *on_target, *_budget_lines(planned), "", table])


def _group_lines(group: list[LayerPlan], sessions: int) -> list[str]:
    layer = group[0].layer
    rules = layer.rules
    sees = "all tokens" if rules.window is None else f"window {rules.window}"
    sinks = f" + {rules.sinks} sinks" if rules.sinks and rules.window is not None else ""
    bits = f"{layer.kind.value}, {_bits_per_value(group[0]):.4g} bits a value"
    why = "" if rules.exact or rules.packs else "; the window lies within the recent tokens: nothing to pack"
    return [
        f"  layers {_ranges(group)}: {sees}{sinks}, {bits}{why}",
        f"    {_formula(group, sessions)} = {_group_bytes(group):,} bytes",
    ]


def _weights_note(weights: WeightSizes | None, loaded: int | None) -> str:
    if weights is None:
        return "neither weight files nor a formula for this architecture"
    stored = "" if weights.stored == loaded else f"{size(weights.stored)} in the artifact; "
    return f"{stored}from {weights.basis}"


def _budget_lines(planned: _Planned) -> list[str]:
    largest, plan = _largest(planned), planned.plan
    if planned.budget is None or largest is None:
        return []
    beside = "the weights" if planned.weights else "weights of unknown size"
    beside += ", scratch and libraries" if planned.fit else ""
    budget = size(planned.budget)
    if largest == 0:
        return ["", f"{budget} is too little beside {beside}"]
    if plan.cache.is_endless:
        return ["", f"{budget} is enough beside {beside}, for streams of any length"]
    return ["", f"in {budget}, beside {beside}: at most {largest} tokens a session"]
