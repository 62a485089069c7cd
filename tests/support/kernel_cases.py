"""Layers that every kernel is tested on: what differs from streams.make_layer's."""

from __future__ import annotations

from typing import Any

CASES: dict[str, dict[str, Any]] = {
    "base": {},
    "no sinks": {"sinks": 0},
    "sinks across pages": {"sinks": 19},
    "one page of sinks": {"sinks": 8},
    "window not a multiple of the page": {"window": 37},
    "window that never packs": {"window": 9},
    "smallest window that packs": {"window": 10},
    "window inside recent": {"window": 5},
    "window equal to recent": {"window": 8},
    "no window": {"window": None},
    "more recent": {"recent": 24},
    "MQA": {"heads": 4, "kv_heads": 1},
    "MHA": {"heads": 3, "kv_heads": 3},
    "seven heads a group": {"heads": 14, "kv_heads": 2},
    "sixteen heads a group": {"heads": 16, "kv_heads": 1},
    "softcap": {"softcap": 1.5},
    "head_dim 24": {"head_dim": 24},
    "head_dim 40": {"head_dim": 40},
    "head_dim 80": {"head_dim": 80},
    "head_dim 96": {"head_dim": 96},
    "page 16": {"page": 16, "recent": 16},
}
