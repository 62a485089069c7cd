"""A line of `tegrastats`, the program by which a Jetson tells what it is doing.

Lines of JetPack 5 to 7 differ in what they name; of all that they hold, these parts are read:

    RAM 6185/7620MB             in use and in all, MiB: the GPU's memory is in it
    GR3D_FREQ 63%@[621]         the GPU's load; on Thor without the percentage, or absent
    VDD_IN 12479mW/11204mW      a power rail: now, on average (JetPack 7.2 adds the highest)

The whole board's power is one rail or a sum, after NVIDIA's Jetson Linux Developer Guide: `VIN` on Thor, the input of
module and carrier; `VDD_IN` on Orin Nano and Orin NX, the module; elsewhere the module's three inputs (AGX Orin's
VDDQ_VDD2_1V8AO is in VIN_SYS_5V0 already).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

_MIB = 1 << 20
_RAM = re.compile(r"(?<!\S)RAM (\d+)/(\d+)MB")
_GPU = re.compile(r"(?<!\S)GR3D_FREQ (\d+)%")
_RAIL = re.compile(r"(?<!\S)([A-Z]\w*) (-?\d+)mW")
_BOARD_RAILS = (
    ("VIN",),
    ("VDD_IN",),
    ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"),
    ("VDD_GPU", "VDD_CPU_SOC_MSS", "VIN_SYS_5V0"),
)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One moment of a board.

    Args:
        ram_used, ram_total: bytes.
        gpu_load: 0 to 1, None where the line does not tell.
        rails: milliwatts by name; a sensor near zero may read less.
    """

    ram_used: int
    ram_total: int
    gpu_load: float | None
    rails: Mapping[str, int]

    @property
    def watts(self) -> float | None:
        """Of the whole board, None where no rails for it are named."""
        rails = board_rails(self.rails)
        return sum(self.rails[name] for name in rails) / 1000 if rails else None


def read_line(line: str) -> Reading | None:
    """What a line tells, None where it is none of tegrastats'."""
    line = " ".join(line.split())
    ram, gpu = _RAM.search(line), _GPU.search(line)
    if ram is None:
        return None
    return Reading(
        ram_used=int(ram[1]) * _MIB,
        ram_total=int(ram[2]) * _MIB,
        gpu_load=int(gpu[1]) / 100 if gpu else None,
        rails={name: int(now) for name, now in _RAIL.findall(line)},
    )


def board_rails(names: Collection[str]) -> tuple[str, ...]:
    """Those of these rails that add up to the whole board's power; none where they are not known."""
    return next((rails for rails in _BOARD_RAILS if set(rails) <= set(names)), ())
