"""`kvedge export`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click

from kvedge.export.export import Exported, ExportJob, export_kinds
from kvedge.export.families import NAMES
from kvedge.export.flavour import asked_flavour, require_kernels
from kvedge.export.report_text import report_record
from kvedge.export.settings import CacheSettings, WeightType
from kvedge.export.timed import timed
from kvedge.targets.devices import EngineKind, Target, find_target
from kvedge.targets.kinds import Kind
from kvedge.targets.plan import MemoryPlan, plan_memory
from kvedge.targets.profiles import limits_plan
from kvedge.targets.settings import parse_layer_kinds
from kvedge.targets.spec import DEFAULT_KIND, DEFAULT_PAGE, DEFAULT_RECENT, DEFAULT_SINKS
from kvedge.targets.supports import require_export, require_kernels_for, without_target
from kvedge.targets.units import size

_EXAMPLES = """
\b
Examples:
  kvedge export HuggingFaceTB/SmolLM2-135M-Instruct --kv int3 --window 4096
  kvedge export ./my-model --kv int4 -o my-model-int4
  kvedge export ./my-model --kv int3 --kv-layer 0,29=int8     first and last layer at 8 bits
  kvedge export ./my-model --kv int3,int4 -o all              makes all/int3 and all/int4, traced once
  kvedge export model.Q4_1.gguf --kv k4v3 --window 2048 --weights int4
"""


_FAMILIES = f"""
Families that were shown to work (others are tried): {NAMES}.
"""

_QUANTIZED = {weights.value for weights in WeightType if weights.bits}


@click.command(epilog=_EXAMPLES + _FAMILIES)
@click.argument("model")
@click.option(
    "--kv",
    multiple=True,
    default=[DEFAULT_KIND.value],
    show_default=True,
    help=f"KV cache: {', '.join(k.value for k in Kind)}. Several share the work: --kv int3,int4.",
)
@click.option(
    "--kv-layer",
    multiple=True,
    metavar="LAYERS=KV",
    help="Another kind for some layers, such as 0,29=int8 or 0-3=int4; repeatable.",
)
@click.option("--window", type=int, help="Keys that a token sees besides the sinks; without it nothing is forgotten.")
@click.option(
    "--sinks", type=int, default=DEFAULT_SINKS, show_default=True, help="First tokens, never forgotten, kept exact."
)
@click.option("--recent", type=int, default=DEFAULT_RECENT, show_default=True, help="Newest tokens, kept exact.")
@click.option("--page", type=int, default=DEFAULT_PAGE, show_default=True, help="Tokens a page.")
@click.option(
    "--weights",
    type=click.Choice([w.value for w in WeightType]),
    help="How weights are stored. int4 and int8 also multiply in integers, and keep a quantized GGUF file's own.  "
    "[default: fp32, or the target's]",
)
@click.option("--target", help="Device that it is for, see `kvedge targets`: refuses what cannot run there.")
@click.option(
    "--sm", type=int, multiple=True, help="With --target: kernels for this chip only, such as 89; repeatable."
)
@click.option("--context", type=int, help="With a --target whose engine is built: most tokens without a window.")
@click.option("--chunk", type=int, help="As --context: most new tokens a step.  [default: 256]")
@click.option("--sessions", type=int, help="As --context: most conversations at a time.  [default: 1]")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Folder to make, or to make them in.  [default: MODEL-KV]"
)
@click.option("--no-verify", is_flag=True, help="Do not run the export against the original model.")
@click.option("--trust-remote-code", is_flag=True, help="Run modelling code that comes with the model.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def export(
    model: str,
    kv: tuple[str, ...],
    kv_layer: tuple[str, ...],
    window: int | None,
    sinks: int,
    recent: int,
    page: int,
    weights: str | None,
    target: str | None,
    sm: tuple[int, ...],
    context: int | None,
    chunk: int | None,
    sessions: int | None,
    output: Path | None,
    no_verify: bool,
    trust_remote_code: bool,
    as_json: bool,
) -> None:
    """Rewrite MODEL so that its KV cache is paged, quantized and cyclic.

    MODEL is a Hugging Face folder, a hub id, or a .gguf file.
    """
    device = None if target is None else find_target(target)
    kinds = _kinds(kv)
    settings = CacheSettings(
        kind=kinds[0], window=window, sinks=sinks, recent=recent, page=page, layer_kinds=parse_layer_kinds(kv_layer)
    )
    job = ExportJob(
        source=model,
        settings=settings,
        weights=_weights(weights, device),
        output=output,
        check=not no_verify,
        trust_remote_code=trust_remote_code,
        flavour=asked_flavour(device, sm, {"--context": context, "--chunk": chunk, "--sessions": sessions}),
    )
    _require_device(device, job, kinds, sm)
    _export(job, kinds, as_json)


def _export(job: ExportJob, kinds: tuple[Kind, ...], as_json: bool) -> None:
    """Export and say what came of it, artifact by artifact; JSON in one piece."""
    records = []
    for result in export_kinds(job, kinds, timed):
        records.append(_summary(result))
        if not as_json:
            print(_text(result), flush=True)
        for note in result.notes:
            click.echo(f"note: {note}", err=True)
    if as_json:
        print(json.dumps(records[0] if len(kinds) == 1 else records))


def _weights(name: str | None, device: Target | None) -> WeightType:
    """As asked for, or the usual of the device, or as they are."""
    if name is not None:
        return WeightType(name)
    return device.weights[0] if device else WeightType.FP32


def _require_device(device: Target | None, job: ExportJob, kinds: tuple[Kind, ...], sms: tuple[int, ...]) -> None:
    for settings in (replace(job.settings, kind=kind) for kind in kinds):
        if device is None:
            without_target(settings.kinds)
        else:
            require_export(device, settings, job.weights)
            require_kernels_for(settings.kinds, sms)
    require_kernels(job.flavour)


def _kinds(names: tuple[str, ...]) -> tuple[Kind, ...]:
    """Kinds of options such as int3 and int4,int8: each once, in order.

    Raises:
        KvedgeError: an unknown one, or none.
    """
    parts = [part.strip() for name in names for part in name.split(",")]
    return tuple(dict.fromkeys(Kind.parse(part) for part in parts))


def _summary(result: Exported) -> dict[str, object]:
    plan, report = _plan(result), result.report
    return {
        "folder": str(result.folder),
        "kind": result.manifest.kinds,
        "layers": len(plan.layers),
        "file_bytes": _file_bytes(result),
        "engine": result.manifest.engine.value,
        "kv_bytes": _kv_bytes(result),
        "fp16_kv_bytes": plan.fp16_bytes,
        "notes": list(result.notes),
        "verified": report and report_record(report),
    }


def _text(result: Exported) -> str:
    plan, report, kind = _plan(result), result.report, result.manifest.kinds
    length = "for ever" if plan.cache.is_endless else f"at {plan.context} tokens"
    lines = [
        f"wrote {result.folder}: {len(plan.layers)} layers, {size(_file_bytes(result))}",
        f"KV cache {kind}: {size(_kv_bytes(result))} {length}; the same tokens in fp16: {size(plan.fp16_bytes)}",
    ]
    if result.manifest.engine.is_built:
        build = f"kvedge build {result.folder} --target {result.flavour.target}"
        lines.append(f"for {result.manifest.engine.label}: `{build}` makes its engine")
    if report:
        on_cpu = result.manifest.engine is EngineKind.ORT_CPU
        made_of = "" if on_cpu else f", on the CPU, before the graph was rewritten for {result.manifest.engine.label}"
        lines.append(
            f"against the original{made_of}, worst of {len(report.prompts)} prompts: unquantized max error "
            f"{report.exact_error:.1g} std, {kind} KL {report.kl:.4f}, top-1 {report.top1:.3f}; "
            f"{report.packed_pages_read} packed pages read"
        )
        if result.manifest.model.weights in _QUANTIZED:
            lines.append(
                f"weights {result.manifest.model.weights}: KL {report.weights_kl:.4f}, top-1 {report.weights_top1:.3f} "
                f"against the model's own; {report.weights_kept:.0%} of them kept the integers that they had"
            )
    return "\n".join(lines)


def _plan(result: Exported) -> MemoryPlan:
    cache, limits = result.manifest.cache, result.manifest.limits
    if limits is None:
        return plan_memory(cache, context=cache.max_positions)
    return limits_plan(cache, limits)


def _kv_bytes(result: Exported) -> int:
    """All pools, as often as the engine keeps them."""
    return result.manifest.engine.pools * _plan(result).kv_bytes


def _file_bytes(result: Exported) -> int:
    return sum(info.bytes for info in result.manifest.files.values())
