"""The board that this runs on, where it is a Jetson: its name, software, power mode and clocks.

Read from files and from two of the board's own programs. `nvpmodel -q` names the power mode to anyone;
`jetson_clocks --show` speaks to root only, and to others the clocks stay unknown.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/")
_MODEL, _RELEASE = "proc/device-tree/model", "etc/nv_tegra_release"
_MODE_NUMBER, _MODE_NAMES = "var/lib/nvpmodel/status", "etc/nvpmodel.conf"
_SECONDS = 10  # the programs answer at once, or not at all

_JETPACKS = {
    "36.3.0": "6.0",
    "36.4.0": "6.1",
    "36.4.3": "6.2",
    "36.4.4": "6.2.1",
    "36.4.7": "6.2.1",
    "36.5.0": "6.2.2",
    "36.5.2": "6.2.3",
    "38.2.0": "7.0",
    "38.2.1": "7.0",
    "38.2.2": "7.0",
    "38.4.0": "7.1",
    "39.2.0": "7.2",
    "39.2.1": "7.2.1",
}
_GENERATIONS = {"34": "5", "35": "5", "36": "6", "38": "7", "39": "7"}
"""JetPack of a release of Jetson Linux (NVIDIA's JetPack archive); of another release only the generation is known."""


@dataclass(frozen=True, kw_only=True)
class Jetson:
    """A board, as far as it tells; None is unknown.

    Args:
        model: as the device tree names it.
        l4t: release of Jetson Linux, as 36.4.3; jetpack: the JetPack that it belongs to, as 6.2.
        power_mode: as nvpmodel names it, as MAXN_SUPER.
        clocks_fixed: whether CPU and GPU run at one frequency only, as after `jetson_clocks`.
    """

    model: str
    l4t: str | None
    jetpack: str | None
    power_mode: str | None
    clocks_fixed: bool | None


def find_jetson(root: Path = _ROOT) -> Jetson | None:
    """The board under this root of files, None where that is no Jetson."""
    model, release = _content(root / _MODEL), _content(root / _RELEASE)
    if "Jetson" not in model and not release:
        return None
    l4t = _l4t(release)
    return Jetson(
        model=model or "Jetson",
        l4t=l4t,
        jetpack=None if l4t is None else _JETPACKS.get(l4t, _GENERATIONS.get(l4t.split(".")[0])),
        power_mode=_power_mode(root),
        clocks_fixed=_clocks_fixed(_said("jetson_clocks", "--show")),
    )


def _content(path: Path) -> str:
    """Text of a file, empty where it cannot be read; the device tree ends its own with a zero byte."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip("\0\n ")
    except OSError:
        return ""


def _said(*command: str) -> str:
    """What a program prints, empty where it is absent, fails to end or is killed."""
    try:
        run = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stdout


def _l4t(release: str) -> str | None:
    """From `# R36 (release), REVISION: 4.3, GCID: ...`."""
    found = re.search(r"R(\d+) \(release\), REVISION: (\d+(?:\.\d+)*)", release)
    return f"{found[1]}.{found[2]}" if found else None


def _power_mode(root: Path) -> str | None:
    said = re.search(r"NV Power Mode: *(\S+)", _said("nvpmodel", "-q"))
    if said:
        return str(said[1])
    number = re.search(r"pmode:(\d+)", _content(root / _MODE_NUMBER))
    if number is None:
        return None
    names = re.findall(r"POWER_MODEL ID=(\d+) NAME=(\w+)", _content(root / _MODE_NAMES))
    modes: dict[int, str] = {int(each): name for each, name in names}
    return modes.get(int(number[1]), f"mode {int(number[1])}")


def _clocks_fixed(shown: str) -> bool | None:
    """From lines such as `cpu0: Online=1 ... MinFreq=729600 MaxFreq=729600 ...` and `GPU MinFreq=...`."""
    ranges = re.findall(r"^(cpu|GPU)(?!.*Online=0).*?MinFreq=(\d+) MaxFreq=(\d+)", shown, re.MULTILINE)
    if {name for name, _, _ in ranges} != {"cpu", "GPU"}:
        return None
    return all(low == high for _, low, high in ranges)
