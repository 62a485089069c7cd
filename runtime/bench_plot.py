"""Speed and memory over the tokens in the cache, as a picture: one line an artifact or other engine."""

from __future__ import annotations

import importlib.util
import io
import math
from pathlib import Path
from typing import Any

from kvedge.runtime.bench import BenchResult, DepthResult
from kvedge.targets.errors import KvedgeError, require

_TYPES = (".png", ".svg", ".html")
_INSTALL = "pip install matplotlib, or kvedge[plot]"


def check_plot(path: Path) -> None:
    """Refuse what could not be written, before anything is measured.

    Raises:
        KvedgeError: another type of file, no folder for it, or no matplotlib.
    """
    require(path.suffix.lower() in _TYPES, "--plot", expected=f"a name ending in {', '.join(_TYPES)}", got=path.name)
    require(path.absolute().parent.is_dir(), "--plot", expected="a file in a folder that is there", got=str(path))
    if importlib.util.find_spec("matplotlib") is None:
        raise KvedgeError("--plot", expected="matplotlib", got="none", fix=_INSTALL)


def draw(result: BenchResult, path: Path) -> None:
    """Draw into a file; its suffix tells the type.

    Raises:
        KvedgeError: it cannot be written.
    """
    figure = _figure(result)
    content = io.BytesIO()
    figure.savefig(content, format="png" if path.suffix.lower() == ".png" else "svg", dpi=150)
    written = content.getvalue()
    if path.suffix.lower() == ".html":
        svg = written[written.index(b"<svg") :]
        written = b"<!doctype html><meta charset='utf-8'><title>kvedge bench</title>" + svg
    try:
        path.write_bytes(written)
    except OSError as error:
        raise KvedgeError(f"writing {path}", got=error.strerror or str(error), fix="choose another --plot") from error


def _figure(result: BenchResult) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 4.2), layout="constrained")
    decode, prefill, memory = figure.subplots(1, 3)
    lines = [(f"{each.folder.name} ({each.manifest.kinds})", each.depths, "-") for each in result.artifacts]
    lines += [(each.model.label, each.depths, "--") for each in result.peers]
    for name, depths, style in lines:
        at = [depth.depth for depth in depths]
        decode.errorbar(at, [d.decode.median for d in depths], _bars(depths), label=name, linestyle=style, marker="o")
        read = [depth for depth in depths if depth.prefill]
        rates = [depth.prefill.median for depth in read if depth.prefill]
        prefill.plot([depth.depth for depth in read], rates, label=name, linestyle=style, marker="o")
        memory.plot(at, [d.resident_peak / 1e6 for d in depths], label=name, linestyle=style, marker="o")
    for axes, title in ((decode, "decode, tokens/s"), (prefill, "prefill, tokens/s"), (memory, "peak memory, MB")):
        axes.set_title(title)
        axes.set_xlabel("tokens in the cache")
        if math.isfinite(axes.dataLim.ymax):  # at depth 0 alone there is no prefill to draw
            axes.set_ylim(0, 1.1 * axes.dataLim.ymax)
        axes.grid(alpha=0.3)
    decode.legend(fontsize="small")
    return figure


def _bars(depths: tuple[DepthResult, ...]) -> list[list[float]]:
    """How far the lowest and the highest run are from the median."""
    return [
        [depth.decode.median - depth.decode.low for depth in depths],
        [depth.decode.high - depth.decode.median for depth in depths],
    ]
