"""Attention of new tokens over pages of every kind: microseconds per layer, and against exact pages.

    python -m kvedge.plugins.bench.attention --depth 1024 --depth 8192
    python -m kvedge.plugins.bench.attention --depth 2048 --new 256

One thread. Every kind has pools of its own, as many layers of them as take the bytes of --cold, so that pages
come from memory as they do in a model. Kinds run in turn within a round; the median over rounds is shown, and
the median of the ratios within a round.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from statistics import median

import click
import numpy as np

from kvedge.plugins.native import NativeKernels, native
from kvedge.plugins.step import PagedStep
from kvedge.targets.devices import find_target
from kvedge.targets.kinds import Kind
from kvedge.targets.spec import LayerSpec, PageRules
from kvedge.targets.text_table import text_table

SCALE = 0x3000  # 0.125 as fp16


@dataclass(frozen=True)
class Layers:
    """One kind at one depth: the steps of all its layers."""

    kind: Kind
    layer: LayerSpec
    steps: tuple[PagedStep, ...]

    def microseconds(self, kernels: NativeKernels) -> float:
        """Time of one layer, mean over all."""
        start = time.thread_time()
        for step in self.steps:
            kernels.attend(self.layer, step, interleaved=False)
        return (time.thread_time() - start) / len(self.steps) * 1e6


@dataclass(frozen=True)
class Case:
    """`new` tokens after `depth` others, and the form of a layer."""

    depth: int
    new: int
    heads: int
    kv_heads: int
    head_dim: int


def make_layers(kind: Kind, case: Case, cold: int) -> Layers:
    """Layers whose pools take at least `cold` bytes together."""
    rules = PageRules(page=64, sinks=64, recent=128, window=None, exact=kind.is_exact)
    layer = LayerSpec(
        index=0, heads=case.heads, kv_heads=case.kv_heads, head_dim=case.head_dim, kind=kind, rules=rules, rope=0,
        scale=case.head_dim**-0.5, softcap=0.0,
    )  # fmt: skip
    count = -(-cold // layer.cache_bytes(rules.capacity(case.depth + case.new, case.new)))
    return Layers(kind, layer, tuple(make_step(layer, case, seed) for seed in range(count)))


def make_step(layer: LayerSpec, case: Case, seed: int) -> PagedStep:
    """Random tokens, old and new."""
    rng = np.random.default_rng(seed)
    capacity = layer.rules.capacity(case.depth + case.new, case.new)
    q, k, v = (
        rng.normal(size=(1, n, case.new, layer.head_dim)).astype(np.float32)
        for n in (layer.heads, *[layer.kv_heads] * 2)
    )
    packs = layer.rules.packs
    return PagedStep(
        q=q, k=k, v=v,
        hot=rng.normal(size=layer.hot_shape(capacity.hot_pages)).astype(layer.kind.hot_dtype.value),
        packed=make_packed(layer, capacity.packed_pages, rng) if packs else None,
        hot_table=rng.permutation(capacity.hot_pages)[None].astype(np.int32),
        packed_table=rng.permutation(capacity.packed_pages)[None].astype(np.int32) if packs else None,
        context=np.array([case.depth], np.int32),
        num_new=np.array([case.new], np.int32),
        sink_cos=None, sink_sin=None, bias=None,
    )  # fmt: skip


def make_packed(layer: LayerSpec, pages: int, rng: np.random.Generator) -> np.ndarray:
    """Pages of random codes; scales and means are SCALE."""
    layout = layer.packed_layout
    pool = rng.integers(-(2**31), 2**31, (pages, layer.kv_heads, layout.head_words), np.int32)
    pool[:, :, layout.k_scales :] = SCALE << 16 | SCALE
    return pool.reshape(layer.packed_shape(pages))


def measure(all_layers: list[Layers], rounds: int) -> list[list[float]]:
    """Microseconds by round and kind, one round for warming up not counted."""
    kernels = native()
    return [[layers.microseconds(kernels) for layers in all_layers] for _ in range(rounds + 1)][1:]


def rows_of(case: Case, all_layers: list[Layers], times: list[list[float]]) -> list[dict[str, float | str]]:
    """One row per kind; the first kind is what the others are compared with."""
    rows: list[dict[str, float | str]] = []
    for i, layers in enumerate(all_layers):
        page_bytes = layers.layer.cache_bytes(layers.layer.rules.capacity(case.depth + case.new, case.new))
        rows.append(
            {
                "depth": case.depth,
                "kind": layers.kind.value,
                "us_per_layer": median(row[i] for row in times),
                "times_as_fast": median(row[0] / row[i] for row in times),
                "gb_per_s": page_bytes / median(row[i] for row in times) / 1e3,
            }
        )
    return rows


@click.command(help=(__doc__ or "").replace("    python", "\b\n    python"))
@click.option("--depth", "depths", type=int, multiple=True, default=(1024, 2048, 4096, 8192), show_default=True)
@click.option("--new", default=1, show_default=True, help="New tokens of a step: 1 decodes, many read a prompt.")
@click.option("--heads", default=9, show_default=True)
@click.option("--kv-heads", default=3, show_default=True)
@click.option("--head-dim", default=64, show_default=True)
@click.option("--cold", default=128, show_default=True, help="MiB that the pools of a kind take at least.")
@click.option("--rounds", default=15, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of the table.")
def main(
    depths: tuple[int, ...],
    new: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    cold: int,
    rounds: int,
    as_json: bool,
) -> None:
    """See the module."""
    rows = []
    for depth in depths:
        case = Case(depth, new, heads, kv_heads, head_dim)
        kinds = [make_layers(kind, case, cold << 20) for kind in find_target("cpu").kinds]
        rows += rows_of(case, kinds, measure(kinds, rounds))
    if as_json:
        click.echo(json.dumps({"cpu_isa": native().cpu_isa, "rows": rows}, indent=2))
        return
    click.echo(f"{native().cpu_isa}, {heads} heads, {kv_heads} kv heads, head_dim {head_dim}, {new} new, 1 thread")
    header = ("depth", "kind", "us/layer", "x fp", "GB/s")
    cells = [
        (
            str(r["depth"]),
            str(r["kind"]),
            f"{r['us_per_layer']:.1f}",
            f"{r['times_as_fast']:.2f}",
            f"{r['gb_per_s']:.1f}",
        )
        for r in rows
    ]
    click.echo(text_table(header, cells))


if __name__ == "__main__":
    main()
