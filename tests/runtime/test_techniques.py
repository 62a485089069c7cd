"""What `kvedge plan` says of other ways to keep a cache."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from commands import Command
from small_config import MODEL

from kvedge.runtime.techniques import list_techniques, without_window
from kvedge.targets.kinds import Kind
from kvedge.targets.model_config import make_cache, read_model_config
from kvedge.targets.plan import MemoryPlan, plan_memory
from kvedge.targets.settings import CacheSettings

GEMMA = MODEL | {"model_type": "gemma3_text", "sliding_window": 512, "sliding_window_pattern": 2}


def planned(settings: CacheSettings, config: dict[str, object] = MODEL, **options: int) -> MemoryPlan:
    cache = make_cache(read_model_config(config, "tiny"), settings)
    return plan_memory(cache, **{"context": cache.max_positions} | options)


@pytest.mark.parametrize("window", [None, 1000, 8192])
@pytest.mark.parametrize("config", [MODEL, GEMMA], ids=["full", "half sliding"])
def test_every_row_is_what_its_own_plan_says(window: int | None, config: dict[str, object]) -> None:
    settings = CacheSettings(kind=Kind.INT3, window=window, sinks=64)
    plan = planned(settings, config, sessions=2, chunk=100, context=20_000)
    whole = planned(replace(settings, window=None), config).cache
    assert without_window(plan.cache) == whole
    plain, *rows = list_techniques(plan, whole, None)
    assert [row.kind for row in rows] == [*Kind, *Kind]
    for number, row in enumerate(rows):
        wanted = None if number < len(Kind) else window or 4096
        other = replace(settings, kind=row.kind, window=wanted)
        alone = planned(other, config, sessions=2, chunk=100, context=plan.context)
        assert row.kv_bytes == alone.kv_bytes
        assert (row.window, row.endless, row.sinks) == (wanted, wanted is not None, 64)
        assert row.is_this == (row.kind is Kind.INT3 and wanted == window)
        assert row.largest_context is None
    tokens = plan.context
    sliding = 512 if config is GEMMA else tokens
    assert plain.kv_bytes == 2 * 2 * (2 * 2 * 64 * 2) * (tokens + sliding)


def test_what_fits(tmp_path: Path) -> None:
    plan = planned(CacheSettings(kind=Kind.INT4))
    left = 10_000_000
    plain, *rows = list_techniques(plan, plan.cache, left)
    assert plain.largest_context == left // (4 * 2 * 2 * 64 * 2)
    for row in rows:
        assert row.largest_context is not None and row.kind is not None
        settings = CacheSettings(kind=row.kind, window=row.window)
        sizes = [planned(settings, context=row.largest_context + more).kv_bytes for more in (0, 1)]
        if row.endless:
            assert row.largest_context == (32768 if sizes[0] <= left else 0)
        else:
            assert sizes[0] <= left < sizes[1] or row.largest_context == 32768
    assert {row.largest_context for row in list_techniques(plan, plan.cache, 0)} == {0}


def test_short_models_get_a_short_window() -> None:
    plan = planned(CacheSettings(sinks=64), MODEL | {"max_position_embeddings": 1024})
    assert {row.window for row in list_techniques(plan, plan.cache, None)[1 + len(Kind) :]} == {960}


def test_windows_of_the_model_itself_are_kept() -> None:
    """Every layer slides: an artifact cannot tell whose window it is, the configuration can."""
    config = MODEL | {"model_type": "mistral", "sliding_window": 1000}
    plan = planned(CacheSettings(kind=Kind.INT4), config)
    rows = list_techniques(plan, plan.cache, None)[1:]
    assert {row.window for row in rows} == {1000} and sum(row.is_this for row in rows) == 2
    plan = planned(CacheSettings(kind=Kind.INT4, window=500, sinks=0))
    whole = planned(CacheSettings(kind=Kind.INT4, sinks=0)).cache
    assert [row.window for row in list_techniques(plan, whole, None) if row.is_this] == [500]
    assert without_window(plan.cache) == plan.cache


def test_text_and_json(kvedge: Command, tiny) -> None:
    found = kvedge("plan", tiny.whole, "--memory", "1GB", "--json").json["techniques"]
    assert (found[0]["kind"], found[0]["plain"], found[0]["kv_bytes"]) == (None, True, 256 * 2 * 2 * 2 * 16 * 2)
    assert [row["kind"] for row in found if row["this"]] == ["int3"]
    assert all(row["largest_context"] == 256 for row in found)
    text = kvedge("plan", tiny.whole, "--memory", "1GB").out
    assert re.search(r"^int3 \(this\) +5\.5 .*256 .* for ever$", text, re.MULTILINE)
    assert "window 252 + 4 sinks" in text and "fp16, plain cache" in text
    own = json.loads(kvedge("plan", tiny.int3, "--json").out)["techniques"]
    assert {row["window"] for row in own} == {None, 48}
    assert sum(row["kv_bytes"] for row in own if row["this"]) == kvedge("plan", tiny.int3, "--json").json["kv_bytes"]
    assert "no" in kvedge("plan", tiny.int3, "--memory", "1kB").out.splitlines()[-1].split()
