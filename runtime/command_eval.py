"""`kvedge eval`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvedge.runtime import show

if TYPE_CHECKING:
    from kvedge.runtime.evaluate import EvalResult, Quality

_EXAMPLES = """
\b
Examples:
  kvedge eval ./my-model-int3 book.txt --against ./my-model-fp
  kvedge eval ./my-model-int3 book.txt --tokens 8192 --skip 1024 --json
"""


@click.command("eval", epilog=_EXAMPLES)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("text", metavar="TEXT_FILE", type=click.Path(path_type=Path))
@click.option("--against", type=click.Path(path_type=Path), help="Reference artifact, exported with --kv fp.")
@click.option("--tokens", type=int, default=2048, show_default=True, help="Tokens of the text that are fed.")
@click.option("--skip", type=int, default=256, show_default=True, help="First positions that are not scored.")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads.  [default: all cores]")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def evaluate(
    folder: Path, text: Path, against: Path | None, tokens: int, skip: int, threads: int | None, as_json: bool
) -> None:
    """Measure the quality of the artifact in DIR on a text.

    Perplexity, and with --against the KL divergence from the reference and how often both find the same token
    likeliest. A reference with the same --window shows what quantization costs, one without what all costs.
    """
    from kvedge.runtime.evaluate import EvalJob
    from kvedge.runtime.evaluate import evaluate as run_eval

    job = EvalJob(folder=folder, text=text, against=against, num_tokens=tokens, skip=skip, threads=threads)
    with show.progress_bar(f"eval {folder}") as start:
        result = run_eval(job, start)
    print(json.dumps(_record(result)) if as_json else _text(result))


def _record(result: EvalResult) -> dict[str, object]:
    return {
        "tokens": result.num_tokens,
        "scored": result.scored,
        "this": _quality_record(result.this),
        "reference": result.reference and _quality_record(result.reference),
        "kl": result.kl,
        "top1": result.top1,
    }


def _quality_record(quality: Quality) -> dict[str, object]:
    return {
        "model": quality.manifest.model.name,
        "kind": quality.manifest.kind.value,
        "perplexity": quality.perplexity,
        "packed_pages_read": quality.packed_pages_read,
    }


def _text(result: EvalResult) -> str:
    lines = [
        f"{result.num_tokens} tokens, {result.scored} positions scored",
        *(_quality_line(quality) for quality in (result.this, result.reference) if quality is not None),
    ]
    if result.kl is not None and result.top1 is not None:
        lines.append(f"KL from the reference {result.kl:.4g} nats, same likeliest token {100 * result.top1:.2f} %")
    if result.this.packed_pages_read == 0 and not result.this.manifest.kind.is_exact:
        lines.append("no packed page was read: this says nothing about the quantized cache")
    return "\n".join(lines)


def _quality_line(quality: Quality) -> str:
    name = f"{quality.manifest.model.name} {quality.manifest.kind.value}"
    return f"{name}: perplexity {quality.perplexity:.4f}, {quality.packed_pages_read} packed pages read"
