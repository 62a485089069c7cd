"""Whether plans fit devices: every number of one board by hand, and the rules that tell the engines apart."""

from __future__ import annotations

from dataclasses import replace

import pytest
import small_config

from kvedge.targets.devices import TARGETS, Target, find_target
from kvedge.targets.errors import KvedgeError
from kvedge.targets.fit import Fit, Peak, require_room, spare
from kvedge.targets.kinds import Kind
from kvedge.targets.model_config import make_cache, read_model_config
from kvedge.targets.plan import plan_memory, seen_bytes
from kvedge.targets.settings import CacheSettings, WeightType
from kvedge.targets.weight_sizes import WeightSizes

MODEL = small_config.MODEL | {"max_position_embeddings": 8192}
EMBEDDING = 1000 * 512
BLOCK = 2 * 512 * 512 + 2 * 512 * 128 + 3 * 512 * 1024 + 2 * 512
PARAMETERS = 2 * EMBEDDING + 4 * BLOCK + 512  # 9,941,504, head and embedding apart

HOT_PAGE = 2 * 2 * 64 * 64 * 2  # keys and values, 2 heads, 64 tokens of 64 channels in fp16
PACKED_PAGE = 2 * (64 * 24 + 64 * 24 + 4 * 64 + 2 * 64)  # 3-bit codes of keys and of values, scales, mean
HOT_PAGES = 1 + 4  # sinks; 128 recent tokens, the page that becomes packed, and one to roll back
PACKED_PAGES = (8191 - 64) // 64 - 2
KV = 4 * (HOT_PAGES * HOT_PAGE + PACKED_PAGES * PACKED_PAGE)


def sizes(kind: WeightType, config: dict[str, object] = MODEL) -> WeightSizes:
    model = read_model_config(config, "tiny")
    assert model.parameters is not None and model.looked_up is not None
    return WeightSizes(
        stored_as=kind,
        stored=round(model.parameters * kind.stored_bits / 8),
        step=round((model.parameters - model.looked_up) * kind.stored_bits / 8),
        basis="a formula",
    )


def fit(target: Target | str, weights: WeightSizes | None, **options: int | None) -> Fit:
    """int3 without a window, 8,192 tokens."""
    target = find_target(target) if isinstance(target, str) else target
    cache = make_cache(read_model_config(MODEL, "tiny"), CacheSettings(kind=Kind.INT3))
    plan = plan_memory(cache, context=8192)
    given = {"memory": None, "bandwidth": target.bandwidth} | options
    return Fit(target=target, plan=plan, sizes=weights, memory=given["memory"], bandwidth=given["bandwidth"])


def test_a_board_by_hand() -> None:
    found = fit("jetson-orin-nano", sizes(WeightType.FP16))
    assert found.available == 8 * 2**30 - 1_395_864_371
    assert found.weights == 2 * PARAMETERS == 19_883_008
    assert found.kv == KV == 4_083_712
    assert found.scratch == 256 * 16 * (8 * 64) * 4
    assert found.libraries == 600 * 2**20
    assert found.running == 19_883_008 + 4_083_712 + 8_388_608 + 629_145_600
    assert found.peak == Peak(device=3 * 19_883_008 + 512 * 2**20 + 600 * 2**20, host=0)
    assert found.left_for_pools == found.available - 19_883_008 - 8_388_608 - 629_145_600
    step = 2 * (PARAMETERS - EMBEDDING)
    token = 2 * 2 * 64 * 2
    seen = 256 * token + PACKED_PAGES * PACKED_PAGE  # 64 sinks, 128 recent tokens and one page more are exact
    assert found.step_bytes(0) == step + 4 * token == 18_861_056
    assert found.full == 8191 and found.step_bytes(8191) == step + 4 * seen == 22_811_648
    assert found.most_tokens(0) == pytest.approx(102e9 / 18_861_056)
    assert found.most_tokens(8191) == pytest.approx(4471.4, abs=0.1)


def test_small_weights_are_built_by_the_parameter() -> None:
    small = sizes(WeightType.INT4)
    assert small.stored == PARAMETERS * 5 // 8 and small.parameters == PARAMETERS
    found = fit("jetson-agx-orin", small).peak
    assert found == Peak(device=4 * PARAMETERS + 4 * 2**30 + 600 * 2**20, host=0)


def test_where_copies_of_weights_lie() -> None:
    """A card keeps one while it builds, the host the rest; TensorRT for RTX builds on the host alone."""
    weights = sizes(WeightType.FP16)
    copies = 3 * weights.stored
    assert fit("tensorrt-desktop", weights).peak == Peak(device=weights.stored + 2**30 + 600 * 2**20, host=copies)
    host = 4 * weights.stored + 4 * 50 * 2**20 + 280 * 2**20
    assert fit("rtx", weights).peak == Peak(device=0, host=host)
    assert fit("cuda", weights).peak == Peak(device=weights.stored + 600 * 2**20, host=weights.stored)


@pytest.mark.parametrize(("kind", "loaded", "peak"), [("fp32", 4, 4), ("fp16", 4, 6), ("int8", 9 / 8, 9 / 8)])
def test_the_cpu_unpacks_halves_while_it_loads(kind: str, loaded: float, peak: float) -> None:
    found = fit("cpu", sizes(WeightType(kind)))
    assert found.weights == round(PARAMETERS * loaded)
    assert found.peak == Peak(device=round(PARAMETERS * peak) + 100_000_000, host=0)
    assert found.scratch == 256 * 16 * 512 * 4
    assert found.step_bytes(0) == round((PARAMETERS - EMBEDDING) * loaded) + 4 * 512


def test_two_pools_where_nothing_is_written_in_place() -> None:
    found = fit("rtx", sizes(WeightType.FP16), memory=2 * 10**9)
    assert found.kv == 2 * KV
    assert found.left_for_pools == (2 * 10**9 - 19_883_008 - 8_388_608 - 629_145_600) // 2


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_the_smaller_memory_counts(target: Target) -> None:
    small, huge = (fit(target, None, memory=memory).available for memory in (10**9, 10**15))
    assert small == 10**9
    assert huge == (10**15 if target.memory is None else target.memory - target.system)
    alone = fit(target, None).available
    assert alone == (None if target.memory is None else huge)


def test_what_is_unknown_stays_unknown() -> None:
    found = fit("jetson-orin-nano", None)
    assert (found.weights, found.running, found.peak, found.step_bytes(0), found.most_tokens(0)) == (None,) * 5
    assert found.left_for_pools == found.available - found.scratch - found.libraries
    card = fit("cuda", sizes(WeightType.FP16))
    assert card.left_for_pools is None and card.most_tokens(0) is None and card.step_bytes(0) is not None
    experts = replace(sizes(WeightType.FP16), step=None)
    assert fit("jetson-thor", experts).step_bytes(0) is None and fit("jetson-thor", experts).running is not None
    assert (spare(None, 1), spare(1, None), spare(1, 3), spare(3, 1)) == (None, None, -2, 2)


def test_too_little_memory_leaves_nothing() -> None:
    assert fit("jetson-orin-nano", sizes(WeightType.FP16), memory=10**8).left_for_pools == 0


def test_a_tied_embedding_is_read_as_the_head() -> None:
    tied = MODEL | {"tie_word_embeddings": True}
    assert sizes(WeightType.FP16, tied).stored == sizes(WeightType.FP16, tied).step == 2 * (PARAMETERS - EMBEDDING)
    assert read_model_config(MODEL | {"num_local_experts": 8}, "many").looked_up is None


def test_a_window_bounds_what_is_read() -> None:
    settings = CacheSettings(kind=Kind.INT3, window=512)
    cache = make_cache(read_model_config(MODEL, "tiny"), settings)
    depths = [seen_bytes(cache, depth) for depth in range(0, 2000, 7)]
    assert depths == sorted(depths)
    whole = 4 * (256 * 512 + (512 + 64 - 256) // 64 * PACKED_PAGE)
    assert depths[-1] == seen_bytes(cache, 8191) == whole


def test_what_the_memory_does_not_hold_is_refused() -> None:
    for target in ("jetson-orin-nano", "cpu", "rtx"):
        require_room(fit(target, sizes(WeightType.FP16)))
    full = fit("jetson-orin-nano", sizes(WeightType.FP16))
    assert full.running is not None
    require_room(replace(full, memory=full.running))
    with pytest.raises(KvedgeError) as caught:
        require_room(replace(full, memory=full.running - 1))
    parts = "19.9 MB of weights, 4.1 MB of KV cache, 8.4 MB of scratch, 629.1 MB of libraries"
    assert "jetson-orin-nano cannot hold it; expected at most 661.5 MB, the rest" in str(caught.value)
    assert f"got 661.5 MB: {parts}; take a smaller --context," in str(caught.value)
