"""The table of techniques that `kvedge plan` prints: one row a kind, without a window and with one."""

from __future__ import annotations

from kvedge.runtime.techniques import Technique
from kvedge.targets.text_table import text_table
from kvedge.targets.units import size


def technique_table(techniques: list[Technique], context: int) -> str:
    """Bytes of the cache of `context` tokens and, where memory was named, the largest context that fits."""
    plain, *kinds = techniques
    whole, windowed = kinds[: len(kinds) // 2], kinds[len(kinds) // 2 :]
    none = ["-"] * len(_cells(plain, plain))
    header = ["technique", "bits a value", *_columns(_reach(whole[0], context), plain)]
    header += _columns(_reach(windowed[0], context), plain)
    rows = [["fp16, plain cache", "16", *_cells(plain, plain), *none]]
    for alone, combined in zip(whole, windowed, strict=True):
        this = " (this)" if alone.is_this or combined.is_this else ""
        name = f"{alone.kind.value}{this}" if alone.kind else ""
        rows.append([name, f"{alone.bits:.4g}", *_cells(alone, plain), *_cells(combined, plain)])
    return text_table(header, rows)


def _reach(technique: Technique, context: int) -> str:
    sinks = f" + {technique.sinks:,} sinks" if technique.sinks else ""
    return f"all of {context:,} tokens" if technique.window is None else f"window {technique.window:,}{sinks}"


def _columns(what: str, plain: Technique) -> list[str]:
    return [what] if plain.largest_context is None else [what, "fits"]


def _cells(technique: Technique, plain: Technique) -> list[str]:
    """Size with its share of the plain cache, and the largest context."""
    taken = f"{size(technique.kv_bytes)} {100 * technique.kv_bytes / plain.kv_bytes:3.0f} %"
    return [taken] if technique.largest_context is None else [taken, _fits(technique)]


def _fits(technique: Technique) -> str:
    if not technique.largest_context:
        return "no"
    return "for ever" if technique.endless else f"{technique.largest_context:,}"
