"""`kvedge bench`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvedge.runtime import show
from kvedge.runtime.board_text import BOARD_HEADER, board_cells, board_lines, board_record, ram_text
from kvedge.runtime.peers import PEERS, Peer, parse_peers
from kvedge.targets.text_table import text_table
from kvedge.targets.units import size

if TYPE_CHECKING:
    from kvedge.runtime.bench import (
        ArtifactResult,
        BenchJob,
        BenchResult,
        Comparison,
        DepthResult,
        PeerComparison,
        PeerResult,
        Spread,
    )

_EXAMPLES = """
\b
Examples:
  kvedge bench ./my-model-int3
  kvedge bench all/fp all/int3 all/k4v2                    in turn, and compared
  kvedge bench ./my-model-int3 --depth 0 --depth 8000 --gen 64 --runs 5
  kvedge bench ./my-model-int3 --threads 4 --json > bench.json
  kvedge bench all/fp all/int3 --depth 0 --depth 2000 --depth 8000 --plot speed.svg
  kvedge bench ./my-model-int3 --compare llama.cpp=my-model.Q4_1.gguf,ort-genai=./genai-int4
"""
_HEADER = (
    *("", "kv", "depth", "first token s", "prefill tok/s", "decode tok/s"),
    *("read a token", "of bandwidth", "peak memory"),
)


@click.command(epilog=_EXAMPLES)
@click.argument("folders", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--depth",
    type=int,
    multiple=True,
    help="Tokens before decoding; repeatable.  [default: 0, the window, four windows; without one 0, 512, 2048]",
)
@click.option("--gen", type=int, default=32, show_default=True, help="Decode steps, at least 16.")
@click.option("--runs", type=int, default=3, show_default=True, help="Repetitions; the table has their median.")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads.  [default: all cores]")
@click.option(
    "--ctx", type=click.IntRange(min=1), help="Tokens of a cache without a window.  [default: the model's positions]"
)
@click.option(
    "--compare",
    multiple=True,
    metavar="NAME=MODEL",
    help=f"Other engines with the same model: {', '.join(PEERS)}. Several with commas, or repeated.",
)
@click.option(
    "--plot", type=click.Path(path_type=Path), help="Draw it too: a .png, .svg or .html file (needs matplotlib)."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def bench(
    folders: tuple[Path, ...],
    depth: tuple[int, ...],
    gen: int,
    runs: int,
    threads: int | None,
    ctx: int | None,
    compare: tuple[str, ...],
    plot: Path | None,
    as_json: bool,
) -> None:
    """Measure speed and memory of the artifacts in DIR... on this device.

    Each in a process of its own, in turn. Random tokens, other ones in every run; the warm-up is not counted.
    """
    from kvedge.runtime.bench import BenchJob, run_bench
    from kvedge.runtime.bench_plot import check_plot, draw
    from kvedge.runtime.jetson import find_jetson

    peers = parse_peers(compare)
    for missing in peers.missing:
        click.echo(_missing_text(missing), err=True)
    if plot is not None:
        check_plot(plot)
    job = BenchJob(
        folders=folders, depths=depth or None, gen=gen, runs=runs, context=ctx, threads=threads, peers=peers.models
    )
    with show.progress_bar("bench") as start:
        result = run_bench(job, start, find_jetson())
    if plot is not None:
        draw(result, plot)
    if as_json:
        print(json.dumps(_record(result, job, peers.missing)))
    else:
        print(_text(result, job))


def _missing_text(peer: Peer) -> str:
    return f"note: {peer.name} is not installed and not compared; {peer.install}"


def _record(result: BenchResult, job: BenchJob, missing: tuple[Peer, ...]) -> dict[str, object]:
    from kvedge.runtime.bench import device, versions

    return {
        "engine": " + ".join(_engines(result)),
        "cpu_isa": result.artifacts[0].loaded.cpu_isa,
        "threads": result.threads,
        "read_bandwidth": result.bandwidth,
        "device": device(),
        **board_record(result.board),
        "versions": versions(),
        "gen": job.gen,
        "runs": job.runs,
        "artifacts": [_artifact_record(each) for each in result.artifacts],
        "comparisons": [
            asdict(each) | {"folder": str(each.folder), "against": str(each.against)} for each in result.comparisons
        ],
        "peers": [_peer_record(each) for each in result.peers],
        "missing_peers": [{"peer": peer.name, "install": peer.install} for peer in missing],
        "peer_comparisons": [asdict(each) | {"folder": str(each.folder)} for each in result.peer_comparisons],
    }


def _engines(result: BenchResult) -> list[str]:
    return list(dict.fromkeys(each.manifest.engine.label for each in result.artifacts))


def _artifact_record(result: ArtifactResult) -> dict[str, object]:
    return {
        "folder": str(result.folder),
        "model": result.manifest.model.name,
        "engine": result.manifest.engine.value,
        "kind": result.manifest.kinds,
        "weights": result.manifest.model.weights,
        **asdict(result.loaded),
        **({} if result.ram_rise is None else {"ram_rise": result.ram_rise}),
        "depths": [_depth_record(depth) for depth in result.depths],
    }


def _depth_record(depth: DepthResult) -> dict[str, object]:
    """With the board only where there is one."""
    record = asdict(depth)
    return record if depth.board else {name: value for name, value in record.items() if name != "board"}


def _peer_record(result: PeerResult) -> dict[str, object]:
    model = result.model
    return {
        "peer": model.peer.name,
        "model": str(model.model),
        "settings": model.peer.settings,
        "version": result.version,
        "depths": [_depth_record(depth) for depth in result.depths],
    }


def _text(result: BenchResult, job: BenchJob) -> str:
    from kvedge.runtime.bench import device, versions

    header, rows = _table(result)
    facts = [*device().values(), *(f"{name} {number}" for name, number in versions().items())]
    lines = [
        text_table(header, rows),
        "",
        f"median (lowest to highest) of {job.runs} runs, {job.gen} decode steps each",
        *map(_loaded_text, result.artifacts),
        *map(_peer_facts, result.peers),
        *map(_comparison_text, result.comparisons),
        *map(_peer_text, result.peer_comparisons),
        f"memory is read at {result.bandwidth / 1e9:.1f} GB/s by {result.threads} threads that do nothing else",
        f"{' and '.join(_engines(result))}; on the CPU {result.artifacts[0].loaded.cpu_isa}, {result.threads} threads",
        *board_lines(result.board),
        ", ".join(facts),
    ]
    return "\n".join(lines)


def _table(result: BenchResult) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows, with what the board drew where there is one."""
    found = [(str(each.folder), each.manifest.kinds, depth) for each in result.artifacts for depth in each.depths]
    found += [(each.model.label, "", depth) for each in result.peers for depth in each.depths]
    if result.board is None:
        return _HEADER, [_row(*each) for each in found]
    return (*_HEADER, *BOARD_HEADER), [(*_row(*each), *board_cells(each[2].board)) for each in found]


def _peer_facts(result: PeerResult) -> str:
    model = result.model
    return ", ".join(part for part in (f"{model.label}: {model.model}", result.version, model.peer.settings) if part)


def _row(name: str, kinds: str, depth: DepthResult) -> tuple[str, ...]:
    return (
        name,
        kinds,
        str(depth.depth),
        _spread(depth.first_token_seconds, 2),
        _spread(depth.prefill, 0) if depth.prefill else "-",
        _spread(depth.decode, 1),
        "" if depth.token_bytes is None else size(depth.token_bytes),
        "" if depth.bandwidth_share is None else f"{depth.bandwidth_share:.0%}",
        size(depth.resident_peak),
    )


def _peer_text(each: PeerComparison) -> str:
    prefill = "" if each.prefill_ratio is None else f", and reads the prompt {each.prefill_ratio:.2f} times as fast"
    slower = ": slower here" if _is_slower(each.decode_ratio) or _is_slower(each.prefill_ratio) else ""
    decode = f"{each.folder} decodes {each.decode_ratio:.2f} times as fast as {each.peer} at depth {each.depth}"
    return f"{decode}{prefill}{slower}"


def _is_slower(ratio: float | None) -> bool:
    """As it is printed, with two digits."""
    return ratio is not None and round(ratio, 2) < 1


def _loaded_text(result: ArtifactResult) -> str:
    loaded = result.loaded
    return (
        f"{result.folder}: load {loaded.load_seconds:.1f} s, warm-up {loaded.warm_up_seconds:.1f} s not counted, "
        f"{result.manifest.model.weights} weights; KV cache planned {size(loaded.kv_planned)}, "
        f"allocated {size(loaded.kv_allocated)}, in fp16 {size(loaded.fp16_kv)}; "
        f"{size(loaded.resident_before)} of memory before the load{ram_text(result.ram_rise)}"
    )


def _comparison_text(each: Comparison) -> str:
    slower = ": slower here" if _is_slower(each.decode_ratio) else ""
    return (
        f"{each.folder} decodes {each.decode_ratio:.2f} times as fast as {each.against} at depth {each.depth}{slower}; "
        f"{each.same_tokens:.0f} of {each.tokens} greedy tokens the same before the first that differs"
    )


def _spread(spread: Spread, digits: int) -> str:
    return f"{spread.median:.{digits}f} ({spread.low:.{digits}f} to {spread.high:.{digits}f})"
