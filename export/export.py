"""From a model to artifacts: load, trace, then for each kind stamp, write, check against the original, rename."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvedge.export import artifact
from kvedge.export.flavour import Flavour, convert
from kvedge.export.fuse import fuse_for_ort
from kvedge.export.notes import notes
from kvedge.export.quantize import QuantizedWeights, quantize_model
from kvedge.export.refuse import model_positions, refuse_by_config
from kvedge.export.settings import CacheSettings, WeightType, make_spec
from kvedge.export.source import LoadedModel, load_model
from kvedge.export.stamp import stamp
from kvedge.export.timed import Timed
from kvedge.export.trace import TracedModel, trace
from kvedge.export.verify import Report, verify_artifact
from kvedge.export.weights import store_half
from kvedge.targets.devices import EngineKind
from kvedge.targets.errors import require
from kvedge.targets.kinds import Kind
from kvedge.targets.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A finished export.

    Args:
        folder: the artifact; manifest: what it says of itself.
        report: comparison with the original, None where it was not made.
        notes: what should be said although nothing is wrong.
        flavour: what its graph is for; the comparison is of the graph for the CPU that it was made from.
    """

    folder: Path
    manifest: Manifest
    report: Report | None
    notes: tuple[str, ...]
    flavour: Flavour


@dataclass(frozen=True, kw_only=True)
class ExportJob:
    """What to export and how.

    Args:
        source: model folder, hub id or .gguf file.
        settings: the cache; weights: how weights are stored.
        output: folder to make, None for one named after model and kind.
        check: run the export against the original before it is written.
        trust_remote_code: run modelling code that comes with the model.
        flavour: what the graph is for.
    """

    source: str
    settings: CacheSettings
    weights: WeightType
    output: Path | None
    check: bool
    trust_remote_code: bool
    flavour: Flavour = field(default_factory=Flavour)


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    """A model that is loaded and traced, the positions that it was made for, and its weights if they are in blocks."""

    loaded: LoadedModel
    traced: TracedModel
    max_positions: int
    quantized: QuantizedWeights | None


def export_model(job: ExportJob, timed: Timed) -> Exported:
    """Do the whole job.

    Raises:
        KvedgeError: anything that the user can mend; nothing is left half-written.
    """
    (exported,) = export_kinds(job, (job.settings.kind,), timed)
    return exported


def export_kinds(job: ExportJob, kinds: tuple[Kind, ...], timed: Timed) -> Iterator[Exported]:
    """Export a model once for each kind of cache; it is loaded and traced once, and the weights are one file.

    With several kinds, `job.output` is the folder that theirs are made in. Each artifact is whole as soon as it is
    yielded, whatever happens to the next.

    Raises:
        KvedgeError: anything that the user can mend; nothing is left half-written.
    """
    if job.output is not None:
        _require_new(_targets(job.output, kinds))
    with timed("load"):
        loaded = load_model(job.source, trust_remote_code=job.trust_remote_code)
        refuse_by_config(loaded)
        max_positions = model_positions(loaded)
    job.settings.check_positions(max_positions)
    job.settings.check_layers(loaded.config.get_text_config().num_hidden_layers)
    if job.settings.window is None and not _has_windows(loaded):
        job.flavour.check_positions(max_positions)
    name = loaded.name.split("/")[-1]
    targets = _targets(job.output, kinds) if job.output else [Path(f"{name}-{kind.value}") for kind in kinds]
    _require_new(targets)
    quantized = None
    if job.weights.bits:
        with timed("quantize"):
            quantized = quantize_model(loaded.model, job.weights)
    with timed("trace"):
        traced = trace(loaded, max_positions=_told_apart(job.settings, max_positions))
        fuse_for_ort(traced, quantized.blocks if quantized else {})
    if job.weights is WeightType.FP16:
        store_half(traced.model)
    weights = quantized.weights if quantized else None
    prepared = _Prepared(loaded=loaded, traced=traced, max_positions=max_positions, quantized=weights)
    del quantized  # as large as the artifact
    for kind, target in zip(kinds, targets, strict=True):
        settings = replace(job.settings, kind=kind)
        yield _export_kind(replace(job, settings=settings, output=target), prepared, targets[0], timed)


def _targets(output: Path, kinds: tuple[Kind, ...]) -> list[Path]:
    return [output] if len(kinds) == 1 else [output / kind.value for kind in kinds]


def _require_new(targets: list[Path]) -> None:
    for target in targets:
        artifact.require_new(target)


def _has_windows(loaded: LoadedModel) -> bool:
    """Whether layers may have windows of their own."""
    return getattr(loaded.config.get_text_config(), "sliding_window", None) is not None


def _told_apart(settings: CacheSettings, max_positions: int) -> int:
    """Positions that the rotary embedding ever tells apart."""
    return max_positions if settings.window is None else settings.window + settings.sinks


def _export_kind(job: ExportJob, model: _Prepared, first: Path, timed: Timed) -> Exported:
    """Write one artifact into job.output and check it; it shares the weights of the first one if it is another."""
    target, kind = job.output, job.settings.kind
    assert target is not None
    cache = make_spec(model.traced, job.settings, model.max_positions)
    job.flavour.require_room(cache, artifact.weight_sizes(model.traced.model, job.weights))
    with artifact.partial_folder(target) as folder:
        with timed(f"write {kind.value}"):
            stamped = stamp(model.traced, cache)
            if target == first or job.flavour.engine is not EngineKind.ORT_CPU:
                artifact.write_graph(stamped, folder)
            else:
                artifact.write_sibling(stamped, folder, first)
        report = None
        if job.check:
            with timed(f"verify {kind.value}"):
                report = verify_artifact(folder, model.loaded, cache, job.weights, model.quantized)
            _require_agreement(report, model.loaded.name)
        of_flavour = convert(folder, cache, job.flavour, timed)
        with timed("finish"):
            facts = artifact.Facts(
                kind=kind,
                cache=cache,
                weights=job.weights.value,
                engine=job.flavour.engine,
                limits=job.flavour.limits(cache),
            )
            manifest = artifact.write_rest(folder, model.loaded, facts)
    said = (*notes(model.traced, job.settings, cache), *of_flavour)
    return Exported(folder=target, manifest=manifest, report=report, notes=said, flavour=job.flavour)


def _require_agreement(report: Report, name: str) -> None:
    structure = report.structure_problems
    require(
        not structure,
        f"the exported graph disagrees with {name}",
        got=", ".join(structure[:2]),
        fix="nothing was written; report this model, or look closer with --no-verify",
    )
    require(
        not report.problems,
        f"the quantized cache ruins {name}",
        got=", ".join(report.problems[:2]),
        fix="nothing was written; choose more bits with --kv",
    )
