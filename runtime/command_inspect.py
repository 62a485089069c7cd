"""`kvedge inspect`."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import click

from kvedge.runtime import show
from kvedge.runtime.inspection import FileState, Inspection, Sight, inspect_artifact, sight
from kvedge.runtime.layer_groups import number_ranges
from kvedge.runtime.text import Text
from kvedge.targets.manifest import FORMAT_VERSION
from kvedge.targets.packing import LAYOUT_NAME
from kvedge.targets.spec import POSITION_FRAME, LayerSpec, RopeSpec
from kvedge.targets.supports import chips_of
from kvedge.targets.text_table import text_table
from kvedge.targets.units import size

_EXAMPLES = """
\b
Examples:
  kvedge inspect ./my-model-int3
  kvedge inspect ./my-model-int3 --after 50000        what is still remembered then
  kvedge inspect ./my-model-int3 --json
"""

_HEADER = (
    *("layers", "heads", "kv heads", "head dim", "kind", "K bits", "V bits", "bits a value", "window", "sinks"),
    *("recent", "page", "packed page", "exact page", "rope", "softcap"),
)


@click.command(epilog=_EXAMPLES)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--after", type=int, help="Tokens of the text at whose end to look.  [default: 10,000, or two windows]")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def inspect(folder: Path, after: int | None, as_json: bool) -> None:
    """Show what is in the artifact in DIR.

    Its layers, what a token still sees after so many others, what a stored value takes, and whether every file is
    as it was written: if not, the exit code is 1.
    """
    with show.spinner(f"reading {folder}"):
        found = inspect_artifact(folder, after)
        ends = _end_tokens(found)
    print(json.dumps(_record(found, ends)) if as_json else _text(found, ends))
    if not found.is_whole:
        raise SystemExit(1)


def _end_tokens(found: Inspection) -> dict[int, str]:
    """Tokens that end an answer, and their texts where there is a tokenizer."""
    text = Text.load(found.folder) if found.is_whole else None
    ids = found.manifest.model.eos_ids
    return {token: text.decode([token]) if text and text.has_tokenizer else "" for token in ids}


def _record(found: Inspection, ends: dict[int, str]) -> dict[str, object]:
    model, cache, plan = found.manifest.model, found.manifest.cache, found.plan
    return {
        "folder": str(found.folder),
        "model": model.name,
        "model_type": model.model_type,
        "weights": model.weights,
        "vocab_size": model.vocab_size,
        "eos_ids": list(model.eos_ids),
        "eos_texts": list(ends.values()),
        "engine": found.manifest.engine.value,
        "limits": found.manifest.limits and asdict(found.manifest.limits),
        "engines": found.engines,
        "kernel_sms": chips_of(found.manifest),
        "kind": found.manifest.kinds,
        "format": FORMAT_VERSION,
        "layout": LAYOUT_NAME,
        "position_frame": POSITION_FRAME,
        "max_positions": cache.max_positions,
        "endless": cache.is_endless,
        "kv_bytes": found.manifest.engine.pools * plan.kv_bytes,
        "fp16_kv_bytes": plan.fp16_bytes,
        "bits_per_value": found.bits_per_value,
        "after": found.tokens,
        "layers": [_group_record(group, found.tokens) for group in found.groups],
        "ropes": [_rope_record(rope) for rope in cache.ropes],
        "files": {
            name: {"bytes": info.bytes, "sha256": info.sha256, "state": found.files[name].value}
            for name, info in found.manifest.files.items()
        },
        "unlisted_files": list(found.unlisted),
    }


def _group_record(group: tuple[LayerSpec, ...], tokens: int) -> dict[str, object]:
    layer, rules = group[0], group[0].rules
    seen = sight(rules, tokens)
    return {
        "layers": [each.index for each in group],
        "heads": layer.heads,
        "kv_heads": layer.kv_heads,
        "head_dim": layer.head_dim,
        "kind": layer.kind.value,
        "k_bits": layer.kind.k_bits or None,
        "v_bits": layer.kind.v_bits or None,
        "bits_per_value": _bits(layer),
        "window": rules.window,
        "sinks": rules.sinks,
        "recent": rules.recent,
        "page": rules.page,
        "packed_page_bytes": layer.packed_layout.page_bytes if rules.packs else None,
        "exact_page_bytes": layer.hot_page_bytes,
        "rope": layer.rope,
        "scale": layer.scale,
        "softcap": layer.softcap or None,
        "sees": {
            name: [part.start, part.stop - 1] if part else None
            for name, part in (("sinks", seen.sinks), ("packed", seen.packed), ("exact", seen.exact))
        },
    }


def _rope_record(rope: RopeSpec) -> dict[str, object]:
    return {
        "pairs": rope.pairs,
        "longest_wave": _longest_wave(rope),
        "attention_scaling": rope.attention_scaling,
        "interleaved": rope.interleaved,
    }


def _bits(layer: LayerSpec) -> float:
    """Bits of a stored key or value: packed with its share of scales and mean, or as it is."""
    return layer.packed_layout.bits_per_value if layer.rules.packs else 8 * layer.kind.hot_dtype.itemsize


def _longest_wave(rope: RopeSpec) -> float:
    """Tokens in which the slowest pair turns once."""
    slowest = min(rope.inv_freq)
    return 2 * math.pi / slowest if slowest else math.inf


def _text(found: Inspection, ends: dict[int, str]) -> str:
    model, kind, groups = found.manifest.model, found.manifest.kinds, found.groups
    return "\n".join(
        [
            f"{found.folder}: {model.name} ({model.model_type}), {model.weights} weights, {kind} cache",
            "",
            text_table(_HEADER, [_row(group) for group in groups]),
            "",
            f"after {found.tokens:,} tokens, the newest one sees",
            *(f"  layers {_layers(group)}: {sight_text(sight(group[0].rules, found.tokens))}" for group in groups),
            "",
            *(f"{name:12} {said}" for name, said in _facts(found, ends)),
        ]
    )


def _facts(found: Inspection, ends: dict[int, str]) -> list[tuple[str, str]]:
    plan, cache, engine = found.plan, found.manifest.cache, found.manifest.engine
    limits, chips = found.manifest.limits, chips_of(found.manifest)
    most = cache.max_positions if limits is None else limits.context
    length = "streams of any length" if cache.is_endless else f"at most {most:,} tokens"
    spent = f"{found.bits_per_value:.2f} bits for each value of {plan.visible_tokens:,} tokens, all pages counted"
    said = ", ".join(f"{token} {text}".rstrip() for token, text in ends.items()) or "none: answers end by their length"
    return [
        ("engine", _engine_text(found)),
        *([("kernels", ", ".join(f"SM{sm}" for sm in chips))] if chips else []),
        ("length", f"{length}; the model was made for {cache.max_positions:,} positions"),
        ("positions", f"{POSITION_FRAME}: keys keep theirs, queries are turned towards the sinks"),
        *((f"rope {number}", _rope_text(rope)) for number, rope in enumerate(cache.ropes)),
        ("KV cache", f"{size(engine.pools * plan.kv_bytes)}, {spent}; in fp16 {size(plan.fp16_bytes)}"),
        ("end tokens", said),
        ("files", f"{_files_text(found)}; format {FORMAT_VERSION}, layout {LAYOUT_NAME}"),
    ]


def _engine_text(found: Inspection) -> str:
    """What runs it; for engines that are built their sizes, and which there are."""
    manifest, limits = found.manifest, found.manifest.limits
    if limits is None:
        return manifest.engine.label
    sizes = f"{limits.sessions} x {limits.context:,} tokens, {limits.chunk} a step"
    if manifest.cache.is_endless:
        sizes = f"{limits.sessions} at a time, {limits.chunk} tokens a step"
    engines = ", ".join(f"{name} ({state})" for name, state in found.engines.items())
    return f"{manifest.engine.label}: {sizes}; engines: {engines or 'none yet'}"


def _row(group: tuple[LayerSpec, ...]) -> tuple[str, ...]:
    layer, rules = group[0], group[0].rules
    return (
        _layers(group),
        *(str(number) for number in (layer.heads, layer.kv_heads, layer.head_dim)),
        layer.kind.value,
        *(str(bits) if rules.packs else "exact" for bits in (layer.kind.k_bits, layer.kind.v_bits)),
        f"{_bits(layer):.4g}",
        "all" if rules.window is None else f"{rules.window:,}",
        *(f"{number:,}" for number in (rules.sinks, rules.recent, rules.page)),
        f"{layer.packed_layout.page_bytes:,} B" if rules.packs else "-",
        f"{layer.hot_page_bytes:,} B",
        "none" if layer.rope is None else str(layer.rope),
        f"{layer.softcap:g}" if layer.softcap else "-",
    )


def _layers(group: tuple[LayerSpec, ...]) -> str:
    return number_ranges([layer.index for layer in group])


def sight_text(seen: Sight) -> str:
    """What is seen, in words: 0-63 and 5,904-9,999, exact 0-63 and from 9,856 on."""
    parts = [seen.sinks, seen.window] if seen.window.start > seen.sinks.stop else [range(seen.window.stop)]
    if not seen.window:
        parts = [seen.sinks]
    said = " and ".join(_span(part) for part in parts if part)
    if not seen.packed:
        return f"{said}, all exact"
    sinks = f"{_span(seen.sinks)} and " if seen.sinks else ""
    return f"{said}, exact {sinks}from {seen.exact.start:,} on"


def _span(part: range) -> str:
    return f"{part.start:,}-{part.stop - 1:,}" if len(part) > 1 else f"{part.start:,}"


def _rope_text(rope: RopeSpec) -> str:
    pairing = "neighbouring channels" if rope.interleaved else "halves"
    scaling = f", scaled by {rope.attention_scaling:g}" if rope.attention_scaling != 1 else ""
    return f"{rope.pairs} pairs of {pairing}, the slowest turns once in {_longest_wave(rope):,.0f} tokens{scaling}"


def _files_text(found: Inspection) -> str:
    bad = [f"{name} is damaged: {state.value}" for name, state in found.files.items() if state is not FileState.WHOLE]
    total = size(sum(info.bytes for info in found.manifest.files.values()))
    extra = [f"{name} is not part of it" for name in found.unlisted]
    good = f"{len(found.files) - len(bad)} of {len(found.files)} are whole ({total})"
    return "; ".join([good, *bad, *extra])
