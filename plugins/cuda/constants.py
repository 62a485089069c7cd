"""What a kernel is compiled for, from the layer it serves: Triton's constants, by the names of its parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvedge.plugins.cuda.codes import EDGES, POSITIVE_LEVELS
from kvedge.plugins.reference.rotation import split
from kvedge.targets.kinds import ValueScale
from kvedge.targets.spec import LayerSpec

LEAST_DOT = 16
"""Rows, columns and depth of the smallest product."""

PAGES_A_SPLIT = 8
"""Pages that one program of a decoding step reads."""

Constant = int | float | bool | tuple[float, ...]


def padded(size: int) -> int:
    """The next power of two that a product can take."""
    return max(LEAST_DOT, 1 << (size - 1).bit_length())


@dataclass(frozen=True, kw_only=True)
class QueryBlock:
    """The rows of one program of attend: `tokens` of one page, times `heads` of one kv head."""

    tokens: int
    heads: int


def most_decoded(layer: LayerSpec) -> int:
    """New tokens of a row that, with its query group, still fill no more than the smallest product."""
    return max(1, LEAST_DOT // (1 << (layer.heads // layer.kv_heads - 1).bit_length()))


def query_block(layer: LayerSpec, new_tokens: int) -> QueryBlock:
    """A query group for few new tokens, so that a page is unpacked once for all of it; else many tokens of one head."""
    group, tokens = layer.heads // layer.kv_heads, most_decoded(layer)
    if new_tokens <= tokens:
        return QueryBlock(tokens=min(tokens, _power_in(layer.rules.page)), heads=group)
    return QueryBlock(tokens=min(32, _power_in(layer.rules.page)), heads=1)


def layer_constants(layer: LayerSpec) -> dict[str, Constant]:
    """Constants of a layer that every kernel chooses from."""
    dim, page, kind, packs = layer.head_dim, layer.rules.page, layer.kind, layer.rules.packs
    power, odd = split(dim)
    k_bits, v_bits = (kind.k_bits, kind.v_bits) if packs else (0, 0)
    constants: dict[str, Constant] = {
        "HEADS": layer.heads,
        "KV_HEADS": layer.kv_heads,
        "DIM": dim,
        "DIM_P": padded(dim),
        "TOKENS": page,
        "TOKENS_P": padded(page),
        "PACKS": packs,
        "SOFTCAP": float(layer.softcap),
        "POWER": power,
        "ODD": odd,
        "ODD_P": 1 << (odd - 1).bit_length(),
        "NORM": float(np.float32(1 / math.sqrt(power))),
        "ROOT": float(np.float32(math.sqrt(dim))),
        "K_BITS": k_bits,
        "V_BITS": v_bits,
        "FLOAT_CODES": packs and kind.has_floats,
        "V_UNBIASED": kind.value_scale is ValueScale.UNBIASED,
        "K_LEVELS": POSITIVE_LEVELS.get(k_bits, ()),
        "V_LEVELS": POSITIVE_LEVELS.get(v_bits, ()),
        "K_EDGES": EDGES.get(k_bits, ()),
        "V_EDGES": EDGES.get(v_bits, ()),
    }
    return constants | _page_constants(layer)


def constants_of(kernel: Any, **known: Any) -> dict[str, Any]:
    """Those that a kernel has parameters for."""
    return {name: value for name, value in known.items() if name in kernel.arg_names}


def _page_constants(layer: LayerSpec) -> dict[str, Constant]:
    """Offsets in a packed page, in words; 0 where nothing is packed."""
    if not layer.rules.packs:
        return dict.fromkeys(("V_CODES", "K_SCALES", "V_SCALES", "K_MEAN", "HEAD_WORDS"), 0)
    at = layer.packed_layout
    return {
        "V_CODES": at.v_codes,
        "K_SCALES": at.k_scales,
        "V_SCALES": at.v_scales,
        "K_MEAN": at.k_mean,
        "HEAD_WORDS": at.head_words,
    }


def _power_in(number: int) -> int:
    """The largest power of two that divides it."""
    return number & -number
