"""Check the kernels on this GPU, and time decoding over packed pages against the best exact attention here.

    python -m kvedge.plugins.cuda.check_gpu
    python -m kvedge.plugins.cuda.check_gpu --kv k4v2 --tokens 32768 --json

First every kernel runs on random streams beside the numpy reference. Then one layer attends one new token after 2k to
128k others, for 1 and 8 sequences, beside torch's scaled_dot_product_attention (every back end that takes the shape, in
float16 and bfloat16) and beside these kernels over exact pages. Buffers rotate, so that none is read from a cache;
times are medians of CUDA events; bytes are those of packed pages, beside the bandwidth of a copy. A few minutes, no
download.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import click
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from kvedge.plugins.cuda.agree import agreements
from kvedge.plugins.cuda.attention import Attention
from kvedge.plugins.cuda.pools import Problem, attention_over, packed_bytes
from kvedge.targets.errors import KvedgeError
from kvedge.targets.kinds import Kind
from kvedge.targets.text_table import text_table

ROUNDS = 30
COLD_BYTES = 512 * 2**20
"""All buffers of a problem together: more than any cache holds."""

BACKENDS = (
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
)


@dataclass(frozen=True, kw_only=True)
class Timed:
    """Microseconds of one decoding step of one layer.

    Args:
        best: of torch's back ends; best_name says which.
        packed_gb: GB/s of packed pages.
        copy_gb: GB/s that a copy reads and writes.
    """

    batch: int
    tokens: int
    packed: float
    exact: float
    best: float
    best_name: str
    packed_gb: float
    copy_gb: float

    @property
    def ratio(self) -> float:
        """How many times as fast packed pages are as the best exact attention, these kernels' included."""
        return min(self.best, self.exact) / self.packed


def median_us(launches: list[Callable[[], object]]) -> float:
    """Median microseconds of a launch; they take turns."""
    for launch in launches:
        launch()
    torch.cuda.synchronize()
    times = []
    for n in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        launches[n % len(launches)]()
        end.record()
        end.synchronize()
        times.append(1e3 * float(begin.elapsed_time(end)))
    return statistics.median(times)


def turns(bytes_each: int) -> int:
    """Buffers that take turns."""
    return max(2, min(16, -(-COLD_BYTES // bytes_each)))


def this_chip() -> int:
    """Compute capability x 10 of this GPU."""
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def copy_gb() -> float:
    """GB/s of a copy, bytes read and written."""
    source, target = (torch.empty(COLD_BYTES, dtype=torch.uint8, device="cuda") for _ in range(2))
    return 2 * COLD_BYTES / median_us([partial(target.copy_, source)]) / 1e3


def _attend(backend: SDPBackend, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    with sdpa_kernel(backend):
        return scaled_dot_product_attention(q, k, v, enable_gqa=True)


def torch_us(problem: Problem) -> Iterator[tuple[float, str]]:
    """Times of torch's back ends that take the shape."""
    layer, batch = problem.layer, problem.batch
    each = 4 * batch * layer.kv_heads * problem.tokens * layer.head_dim
    for dtype in (torch.float16, torch.bfloat16):
        shape = (batch, layer.kv_heads, problem.tokens, layer.head_dim)
        q = torch.randn(batch, layer.heads, 1, layer.head_dim, dtype=dtype, device="cuda")
        pairs = [[torch.randn(shape, dtype=dtype, device="cuda") for _ in range(2)] for _ in range(turns(each))]
        for backend in BACKENDS:
            try:
                took = median_us([partial(_attend, backend, q, k, v) for k, v in pairs])
            except RuntimeError:  # this back end does not take the shape or the type
                continue
            yield took, f"{backend.name.lower()} {str(dtype).removeprefix('torch.')}"


def launches_of(problem: Problem) -> list[Callable[[], object]]:
    """These kernels over as many pools as it takes."""
    made: list[Attention] = [attention_over(problem, seed) for seed in range(turns(packed_bytes(problem)))]
    return [attention.launch for attention in made]


def time_problem(kind: Kind, batch: int, tokens: int, copy: float) -> Timed:
    """One batch at one depth."""
    packed, exact = (Problem(kind=k, batch=batch, tokens=tokens) for k in (kind, Kind.FP16))
    best, name = min(torch_us(exact))
    took = median_us(launches_of(packed))
    return Timed(
        batch=batch,
        tokens=tokens,
        packed=took,
        exact=median_us(launches_of(exact)),
        best=best,
        best_name=name,
        packed_gb=packed_bytes(packed) / took / 1e3,
        copy_gb=copy,
    )


@click.command(epilog=__doc__)
@click.option("--kv", default="int3", show_default=True, help="Kind of packed pages.")
@click.option("--batch", type=click.IntRange(1), multiple=True, default=(1, 8), show_default=True)
@click.option(
    "--tokens", type=click.IntRange(512), multiple=True, default=(2048, 8192, 32768, 131072), show_default=True
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of the table.")
def main(kv: str, batch: tuple[int, ...], tokens: tuple[int, ...], as_json: bool) -> None:
    """Compare the kernels with the reference on this GPU, then time them."""
    if not torch.cuda.is_available():
        raise KvedgeError(
            "GPU", expected="one that torch can use", got="none", fix="run it where torch.cuda.is_available()"
        )
    kind, sm, failed = Kind.parse(kv), this_chip(), False
    kind.require_read_by(sm, f"{kind.value} pages")
    for agreement in agreements("cuda", sm):
        failed = failed or not agreement.holds
        click.echo(agreement.line, err=as_json)
    if failed:
        sys.exit("the kernels differ from the reference on this GPU: nothing was timed")
    copy = copy_gb()
    timed = list(_time_all(kind, [(b, t) for b in batch for t in tokens], copy))
    if not timed:
        sys.exit("nothing was timed: no size fits this GPU's memory")
    if as_json:
        click.echo(json.dumps([vars(one) | {"ratio": one.ratio} for one in timed], indent=2))
    else:
        click.echo(_table(kind, timed))


def _time_all(kind: Kind, sizes: list[tuple[int, int]], copy: float) -> Iterator[Timed]:
    """Every batch and depth that this GPU has memory for."""
    for batch, tokens in sizes:
        try:
            yield time_problem(kind, batch, tokens, copy)
        except torch.OutOfMemoryError:
            click.echo(f"batch {batch}, {tokens} tokens: more memory than this GPU has, left out", err=True)
        torch.cuda.empty_cache()


def _table(kind: Kind, timed: list[Timed]) -> str:
    head = (
        "batch",
        "tokens",
        f"{kind.value} us",
        "exact pages us",
        "torch us",
        "torch's best",
        "times",
        "GB/s",
        "of copy",
    )
    rows = [
        (
            str(t.batch),
            str(t.tokens),
            f"{t.packed:.1f}",
            f"{t.exact:.1f}",
            f"{t.best:.1f}",
            t.best_name,
            f"{t.ratio:.2f}",
            f"{t.packed_gb:.0f}",
            f"{t.packed_gb / t.copy_gb:.0%}",
        )
        for t in timed
    ]
    where = f"{torch.cuda.get_device_name()}, torch {torch.__version__}; a copy moves {timed[0].copy_gb:.0f} GB/s"
    return text_table(head, rows) + "\n\n" + where


if __name__ == "__main__":
    try:
        main()
    except KvedgeError as error:
        sys.exit(f"error: {error}")
