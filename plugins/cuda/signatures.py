"""Triton's types of the kernels' parameters, by name, for compiling ahead of time."""

from __future__ import annotations

from typing import Any

from kvedge.targets.kinds import HotDtype

ALIGNMENT = 16
"""Bytes: of all pointers, as the widest load of a thread wants them; who launches asks that it is so."""

INTS = frozenset(
    {
        "sinks",
        "recent_pages",
        "window",
        "hot_slots",
        "packed_slots",
        "packed_splits",
        "pages_a_split",
        "exact_pages_a_split",
        "new_tokens",
        "splits",
        "rows",
    }
)
INT_POINTERS = frozenset(
    {"packed", "hot_table", "packed_table", "context", "num_new", "bias_channels", "bias_rows", "pages_read"}
)
FLOATS = frozenset({"scale"})


def signature(kernel: Any, constants: dict[str, Any], hot: HotDtype) -> dict[str, str]:
    """Type of each parameter; those that are constants are "constexpr"."""
    return {name: "constexpr" if name in constants else _type(name, hot) for name in kernel.arg_names}


def aligned(types: dict[str, str]) -> dict[tuple[int], list[list[object]]]:
    """What Triton is told of parameters: pointers are multiples of ALIGNMENT, so that loads may be as wide."""
    return {(number,): [["tt.divisibility", ALIGNMENT]] for number, kind in enumerate(types.values()) if kind[0] == "*"}


def _type(name: str, hot: HotDtype) -> str:
    if name in INTS:
        return "i32"
    if name in FLOATS:
        return "fp32"
    if name in INT_POINTERS:
        return "*i32"
    if name == "packed_halves" or (name == "hot" and hot is HotDtype.FLOAT16):
        return "*fp16"
    return "*fp32"
