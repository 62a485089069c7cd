"""From a model to an artifact: load, trace, stamp, write, check against the original, rename."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from kvedge.export import artifact, verify
from kvedge.export.settings import CacheSettings, WeightType, make_spec
from kvedge.export.source import LoadedModel, load_model
from kvedge.export.stamp import stamp
from kvedge.export.trace import TracedModel, trace
from kvedge.export.verify import Report
from kvedge.export.weights import store_half
from kvedge.targets.errors import KvedgeError
from kvedge.targets.kinds import Kind
from kvedge.targets.manifest import Manifest

Progress = Callable[[str], AbstractContextManager[None]]
"""Shows that a named part of the work goes on while its block runs."""

_TOLERANCE = {WeightType.FP32: verify.EXACT_TOLERANCE, WeightType.FP16: verify.HALF_TOLERANCE}


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A finished export. `report` is None where it was not verified."""

    folder: Path
    manifest: Manifest
    report: Report | None


@dataclass(frozen=True, kw_only=True)
class ExportJob:
    """What to export and how.

    Args:
        source: model folder, hub id or .gguf file.
        settings: the cache; weights: how weights are stored.
        output: folder to make, None for one named after model and kind.
        check: run the export against the original before it is written.
        trust_remote_code: run modelling code that comes with the model.
    """

    source: str
    settings: CacheSettings
    weights: WeightType
    output: Path | None
    check: bool
    trust_remote_code: bool


def export_model(job: ExportJob, progress: Progress) -> Exported:
    """Do the whole job.

    Raises:
        KvedgeError: anything that the user can mend; nothing is left half-written.
    """
    if job.output is not None:
        artifact.require_new(job.output)
    with progress("load"):
        loaded = load_model(job.source, trust_remote_code=job.trust_remote_code)
        max_positions = model_positions(loaded)
    job.settings.check_positions(max_positions)
    target = job.output or Path(f"{loaded.name.split('/')[-1]}-{job.settings.kind.value}")
    with artifact.partial_folder(target) as folder:
        with progress("trace"):
            traced = trace(loaded, max_positions=_told_apart(job.settings, max_positions))
        manifest, report = _write(job, loaded, traced, max_positions, folder, progress)
    return Exported(folder=target, manifest=manifest, report=report)


def model_positions(loaded: LoadedModel) -> int:
    """Positions that the model was made for."""
    positions = getattr(loaded.config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(positions, int):
        raise KvedgeError(loaded.name, expected="max_position_embeddings in its config", got=positions)
    return positions


def _told_apart(settings: CacheSettings, max_positions: int) -> int:
    """Positions that the rotary embedding ever tells apart."""
    return max_positions if settings.window is None else settings.window + settings.sinks


def _write(
    job: ExportJob, loaded: LoadedModel, traced: TracedModel, max_positions: int, folder: Path, progress: Progress
) -> tuple[Manifest, Report | None]:
    cache = make_spec(traced, job.settings, max_positions)
    with progress("write"):
        if job.weights is WeightType.FP16:
            store_half(traced.model)
        graph = artifact.write_graph(stamp(traced, cache), folder)
    report = _verify(job, loaded, traced, max_positions, graph, progress) if job.check else None
    with progress("finish"):
        manifest = artifact.write_rest(folder, loaded, job.settings.kind, cache, job.weights.value)
    return manifest, report


def _verify(
    job: ExportJob, loaded: LoadedModel, traced: TracedModel, max_positions: int, graph: Path, progress: Progress
) -> Report:
    cache = make_spec(traced, job.settings, max_positions)
    exact_settings = CacheSettings(
        kind=Kind.FP,
        window=job.settings.window,
        sinks=job.settings.sinks,
        recent=job.settings.recent,
        page=job.settings.page,
    )
    exact = make_spec(traced, exact_settings, max_positions)
    with progress("verify"):
        twin = artifact.write_twin(stamp(traced, exact), graph, "exact.onnx")
        error = verify.verify_structure(loaded, twin, exact, _TOLERANCE[job.weights])
        twin.unlink()
        return verify.measure_kind(loaded, graph, cache, error)
