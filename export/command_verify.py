"""`kvedge verify`."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import click

from kvedge.export.quantize import quantize_model
from kvedge.export.report_text import report_record, report_table
from kvedge.export.source import LoadedModel, load_model
from kvedge.export.timed import timed
from kvedge.export.verify import Report, verify_artifact
from kvedge.targets import manifest as artifact
from kvedge.targets.devices import EngineKind
from kvedge.targets.errors import require
from kvedge.targets.manifest import Manifest
from kvedge.targets.settings import WeightType

_EXAMPLES = """
\b
Examples:
  kvedge verify ./my-model-int3 ./my-model
  kvedge verify ./my-model-int3 org/my-model --json && echo fine
"""


@click.command(epilog=_EXAMPLES)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("model")
@click.option("--trust-remote-code", is_flag=True, help="Run modelling code that comes with the model.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def verify(folder: Path, model: str, trust_remote_code: bool, as_json: bool) -> None:
    """Compare the artifact in DIR with the MODEL that it was made from.

    On several prompts, large activations and many scripts among them: unquantized, where it must agree to rounding;
    before anything is packed; and where packed pages are read. Errors are in standard deviations of the logits.
    The exit code is 1 where it disagrees.
    """
    with timed("check"):
        manifest = artifact.load(folder)
    _require_cpu(manifest, folder)
    with timed("load"):
        loaded = load_model(model, trust_remote_code=trust_remote_code)
    _require_same_model(manifest, loaded, folder)
    weights = WeightType(manifest.model.weights)
    with timed("quantize") if weights.bits else nullcontext():
        quantized = quantize_model(loaded.model, weights)
    with timed("verify"):
        report = verify_artifact(folder, loaded, manifest.cache, weights, quantized.weights if quantized else None)
    if as_json:
        record = {"folder": str(folder), "model": loaded.name, "agrees": not report.problems}
        print(json.dumps(record | {"kind": manifest.kinds} | report_record(report)))
    else:
        print(_text(folder, manifest, loaded, report))
    if report.problems:
        raise SystemExit(1)


def _require_cpu(manifest: Manifest, folder: Path) -> None:
    """Other engines' graphs run where their engines are; what they were made of was compared when it was exported."""
    fine = manifest.engine is EngineKind.ORT_CPU
    fix = "export the same without --target, and verify that"
    require(
        fine, f"verifying {folder}", expected=f"one for {EngineKind.ORT_CPU.label}", got=manifest.engine.label, fix=fix
    )


def _require_same_model(manifest: Manifest, loaded: LoadedModel, folder: Path) -> None:
    """Refuse what cannot be compared at all."""
    config = loaded.config.get_text_config()
    there = manifest.model.model_type, len(manifest.cache.layers), manifest.model.vocab_size
    here = loaded.config.model_type, config.num_hidden_layers, config.vocab_size
    kind, layers, vocab = here
    require(
        there == here,
        f"{folder} was not made from {loaded.name}",
        expected=f"{there[0]} with {there[1]} layers and a vocabulary of {there[2]}",
        got=f"{kind} with {layers} layers and a vocabulary of {vocab}",
        fix="give the model that it was made from",
    )


def _text(folder: Path, manifest: Manifest, loaded: LoadedModel, report: Report) -> str:
    kind = manifest.kinds
    lines = [f"{folder} ({kind}) against {loaded.name}; errors are max |difference| / std of the logits", ""]
    lines += [report_table(report), ""]
    if report.forgets:
        lines.append("the prompts are longer than the window: the original was made to forget what the cache forgets")
    if report.packed_pages_read == 0:
        lines.append("no packed page was read: this cache packs nothing within its window")
    lines += [f"DISAGREES: {problem}" for problem in report.problems] or ["agrees"]
    return "\n".join(lines)
