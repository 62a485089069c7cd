"""The records of devices, against the data sheets' numbers written out here once more."""

from __future__ import annotations

import pytest

from kvedge.targets.devices import TARGETS, EngineKind, Target, find_target
from kvedge.targets.errors import KvedgeError

MIB = 1 << 20

# name: memory in GiB, GB/s, SM, MiB that the system keeps, MiB of workspace
BOARDS = {
    "jetson-orin-nano": (8, 102, 87, 1331, 512),
    "jetson-orin-nano-4gb": (4, 51, 87, 1331, 256),
    "jetson-orin-nx": (16, 102, 87, 1331, 1024),
    "jetson-orin-nx-8gb": (8, 102, 87, 1331, 512),
    "jetson-agx-orin": (64, 204.8, 87, 3276, 4096),
    "jetson-agx-orin-32gb": (32, 204.8, 87, 1638, 2048),
    "jetson-thor": (128, 273, 110, 6553, 4096),
    "jetson-thor-64gb": (64, 273, 110, 3276, 4096),
}


@pytest.mark.parametrize("name", BOARDS)
def test_boards_are_what_their_data_sheets_say(name: str) -> None:
    gib, bandwidth, sm, system, workspace = BOARDS[name]
    target = find_target(name)
    assert target.engine is EngineKind.TENSORRT and target.shared
    assert (target.memory, target.bandwidth) == (gib * 1024 * MIB, bandwidth * 10**9)
    assert target.sms == (sm,) and target.chips == f"SM{sm}"
    assert target.workspace is not None
    assert (target.system // MIB, target.workspace // MIB) == (system, workspace)


@pytest.mark.parametrize(
    ("name", "software"),
    [
        ("jetson-orin-nano", ["JetPack 6.2: TensorRT 10.3,", "JetPack 7.2: TensorRT 10.16,"]),
        ("jetson-agx-orin", ["JetPack 6.2: TensorRT 10.3,", "JetPack 7.2: TensorRT 10.16,"]),
        ("jetson-thor", ["JetPack 7.0 and 7.1: TensorRT 10.13,", "JetPack 7.2: TensorRT 10.16,"]),
    ],
)
def test_orin_has_two_jetpacks_and_thor_none_before_7(name: str, software: list[str]) -> None:
    found = find_target(name).software
    assert len(found) == len(software)
    assert all(text.startswith(start) for text, start in zip(found, software, strict=True))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_what_is_not_known_is_left_open(target: Target) -> None:
    """Boards have one memory and one bandwidth; of cards and CPUs neither is known, so nothing is kept back either."""
    is_board = target.name in BOARDS
    assert is_board == (target.memory is not None) == (target.bandwidth is not None) == (target.system > 0)
    assert target.engine.is_built == (target.workspace is not None)
    assert (target.engine.checked == "run") == (target.name == "cpu")
    assert target.shared == (is_board or target.name in ("cpu", "jetson-orin"))
    assert target.engine.pools == (2 if target.engine is EngineKind.TENSORRT_RTX else 1)


def test_names() -> None:
    names = [target.name for target in TARGETS]
    assert len(set(names)) == len(names)
    boards = [*list(BOARDS)[:6], "jetson-orin", *list(BOARDS)[6:]]
    assert names == [*boards, "tensorrt-desktop", "rtx", "cuda", "cpu"]
    assert find_target("rtx").chips == "SM86, SM89 or SM120"
    assert find_target("cpu").chips == "no GPU"
    with pytest.raises(KvedgeError) as caught:
        find_target("jetson")
    assert str(caught.value) == (
        f"--target; expected one of {', '.join(boards)}; got jetson; `kvedge targets` says what they are"
    )
    with pytest.raises(KvedgeError, match=f"expected one of {', '.join(names)}; got xbox"):
        find_target("xbox")
    assert find_target("RTX") is find_target("rtx")


def test_any_orin_is_what_all_orins_are() -> None:
    """Its builder's workspace is one that the smallest has room for."""
    orins = [find_target(name) for name in BOARDS if "orin" in name]
    anyone = find_target("jetson-orin")
    for orin in orins:
        same = ("engine", "software", "sms", "shared", "pages", "weights")
        assert [getattr(orin, name) for name in same] == [getattr(anyone, name) for name in same]
    assert anyone.workspace == min(orin.workspace or 0 for orin in orins) == 256 * MIB
