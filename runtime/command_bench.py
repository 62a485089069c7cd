"""`kvedge bench`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvedge.runtime import show
from kvedge.targets.units import size

if TYPE_CHECKING:
    from kvedge.runtime.bench import BenchResult, Spread

_EXAMPLES = """
\b
Examples:
  kvedge bench ./my-model-int3
  kvedge bench ./my-model-int3 --depth 0 --depth 8000 --gen 64 --runs 5
  kvedge bench ./my-model-int3 --threads 4 --json > bench.json
"""


@click.command(epilog=_EXAMPLES)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--depth", type=int, multiple=True, help="Tokens before decoding; repeatable.  [default: 0, 512, 2048]")
@click.option("--gen", type=int, default=32, show_default=True, help="Decode steps, at least 16.")
@click.option("--runs", type=int, default=3, show_default=True, help="Repetitions; the table has their median.")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads.  [default: all cores]")
@click.option("--ctx", type=int, help="Tokens of a cache without a window.  [default: the model's positions]")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def bench(
    folder: Path,
    depth: tuple[int, ...],
    gen: int,
    runs: int,
    threads: int | None,
    ctx: int | None,
    as_json: bool,
) -> None:
    """Measure speed and memory of the artifact in DIR on this device.

    Random tokens, other ones in every run; the warm-up is not counted.
    """
    from kvedge.runtime.bench import BenchJob, run_bench

    job = BenchJob(folder=folder, depths=depth or None, gen=gen, runs=runs, context=ctx, threads=threads)
    with show.progress_bar(f"bench {folder}") as start:
        result = run_bench(job, start)
    if as_json:
        print(json.dumps(_record(result, job.gen, job.runs)))
    else:
        _print(result, job.gen, job.runs)


def _record(result: BenchResult, gen: int, runs: int) -> dict[str, object]:
    from kvedge.runtime.bench import ENGINE, versions

    return {
        "model": result.manifest.model.name,
        "kind": result.manifest.kind.value,
        "weights": result.manifest.model.weights,
        "engine": ENGINE,
        "threads": result.threads,
        "versions": versions(),
        "gen": gen,
        "runs": runs,
        "load_seconds": result.load_seconds,
        "warm_up_seconds": result.warm_up_seconds,
        "resident_before_bytes": result.resident_before,
        "resident_peak_bytes": result.resident_peak,
        "kv_planned_bytes": result.kv_planned,
        "kv_allocated_bytes": result.kv_allocated,
        "fp16_kv_bytes": result.fp16_kv,
        "depths": [asdict(depth) for depth in result.depths],
    }


def _print(result: BenchResult, gen: int, runs: int) -> None:
    from rich.console import Console
    from rich.table import Table

    from kvedge.runtime.bench import ENGINE, versions

    model = result.manifest.model
    table = Table(title=f"{model.name}, {result.manifest.kind.value}", title_justify="left")
    for column in ("depth", "prefill tok/s", "decode tok/s", "packed pages a token"):
        table.add_column(column, justify="right")
    for depth in result.depths:
        pages = f"{depth.packed_pages_per_token:.1f}"
        table.add_row(str(depth.depth), _spread(depth.prefill), _spread(depth.decode), pages)
    console = Console(highlight=False, markup=False)
    console.print(table)
    lines = [
        f"median (lowest to highest) of {runs} runs, {gen} decode steps each; warm-up "
        f"{result.warm_up_seconds:.1f} s not counted",
        f"load {result.load_seconds:.1f} s; {ENGINE}, {result.threads} threads, {model.weights} weights",
        f"KV cache planned {size(result.kv_planned)}, allocated {size(result.kv_allocated)}, "
        f"in fp16 {size(result.fp16_kv)}",
        f"resident memory {size(result.resident_before)} before the load, {size(result.resident_peak)} at most",
        ", ".join(f"{name} {number}" for name, number in versions().items()),
    ]
    console.print("\n".join(lines), soft_wrap=True)


def _spread(spread: Spread | None) -> str:
    return "-" if spread is None else f"{spread.median:.1f} ({spread.low:.1f} to {spread.high:.1f})"
