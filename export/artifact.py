"""Write an artifact folder: into a temporary neighbour first, renamed only when it is complete and checked."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from kvedge.export.source import LoadedModel
from kvedge.plugins import schema
from kvedge.targets import manifest as artifact
from kvedge.targets.devices import EngineKind
from kvedge.targets.errors import KvedgeError, require
from kvedge.targets.kinds import Kind
from kvedge.targets.manifest import Manifest, ModelInfo
from kvedge.targets.profiles import StepLimits
from kvedge.targets.settings import WeightType
from kvedge.targets.spec import CacheSpec
from kvedge.targets.weight_sizes import WeightSizes

_TOKENIZER_FILES = (artifact.TOKENIZER, "tokenizer_config.json", "chat_template.jinja")


@contextmanager
def partial_folder(target: Path) -> Iterator[Path]:
    """A folder that becomes `target` if the block ends well, and vanishes if not, as do folders made to hold it.

    Raises:
        KvedgeError: target is there already, or cannot be written.
    """
    require_new(target)
    missing = [parent for parent in target.absolute().parents if not parent.exists()]
    try:
        with _explained(target, "free some space, or choose another -o"):
            target.parent.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
            try:
                yield folder
                folder.chmod(0o755)
                folder.replace(target)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    finally:
        for parent in missing:
            with suppress(OSError):
                parent.rmdir()  # only where it is empty


@contextmanager
def _explained(target: Path, fix: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise KvedgeError(f"writing {target}", got=error.strerror or str(error), fix=fix) from error


def require_new(target: Path) -> None:
    """Refuse to write over anything, or where nothing can be written.

    Raises:
        KvedgeError: something is there already, or the folder above may not be written.
    """
    fix = "remove it, or choose another -o"
    free = not os.path.lexists(target) or (target.is_dir() and not any(target.iterdir()))
    require(free, f"output {target}", expected="a new folder", got="one that is there", fix=fix)
    above = next(parent for parent in target.absolute().parents if parent.exists())
    where, place = f"output {target}", "a place to write"
    require(above.is_dir(), where, expected=place, got=f"{above}, a file", fix="choose another -o")
    allowed = os.access(above, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)
    require(allowed, where, expected=place, got=f"{above}, read-only", fix="choose another -o")


def write_graph(model: ir.Model, folder: Path) -> None:
    """Write the graph with its weights beside it."""
    ir.save(model, folder / artifact.GRAPH, external_data=artifact.WEIGHTS)


def write_sibling(model: ir.Model, folder: Path, written: Path) -> None:
    """Write a graph that has the weights of another one, in the folder `written`; their file is shared if possible.

    What the other graph does not have goes into the graph itself.
    """
    stored = ir.load(written / artifact.GRAPH).graph.initializers
    for name, value in model.graph.initializers.items():
        if name in stored:
            value.const_value = stored[name].const_value
    ir.save(model, folder / artifact.GRAPH)
    _share_file(written / artifact.WEIGHTS, folder / artifact.WEIGHTS)


def _share_file(source: Path, target: Path) -> None:
    """Make the same file known under a second name; a copy where the file system has no such names."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What an artifact's graph is, for its manifest.

    Args:
        kind: KV cache of most layers; cache: all layers; weights: how they are stored.
        engine: what runs the graph; limits: sizes that it is built for, None where nothing is built.
    """

    kind: Kind
    cache: CacheSpec
    weights: str
    engine: EngineKind = EngineKind.ORT_CPU
    limits: StepLimits | None = None


def write_rest(folder: Path, loaded: LoadedModel, facts: Facts) -> Manifest:
    """Write tokenizer and manifest; the folder is then a complete artifact."""
    if loaded.tokenizer is not None:
        _write_tokenizer(folder, loaded)
    config = loaded.config.get_text_config()
    info = ModelInfo(
        name=loaded.name,
        model_type=loaded.config.model_type,
        vocab_size=config.vocab_size,
        weights=facts.weights,
        step_bytes=step_bytes(ir.load(folder / artifact.GRAPH)),
        eos_ids=eos_ids(loaded),
    )
    files = {path.name: artifact.describe(path) for path in sorted(folder.iterdir())}
    manifest = Manifest(
        model=info, engine=facts.engine, kind=facts.kind, cache=facts.cache, limits=facts.limits, files=files
    )
    artifact.write(folder, manifest)
    return manifest


def step_bytes(graph: ir.Model) -> int:
    """Stored bytes of the weights that every step reads as a whole: all but tables that are only looked up in."""
    return sum(
        value.const_value.nbytes
        for value in graph.graph.initializers.values()
        if value.const_value is not None and not all(_is_lookup(use.node) for use in value.uses())
    )


def weight_sizes(graph: ir.Model, stored_as: WeightType) -> WeightSizes:
    """Sizes of the weights of a graph that is not written yet."""
    values = graph.graph.initializers.values()
    stored = sum(value.const_value.nbytes for value in values if value.const_value is not None)
    return WeightSizes(stored_as=stored_as, stored=stored, step=step_bytes(graph), basis="the graph's weights")


def _is_lookup(node: ir.Node) -> bool:
    return node.op_type in ("Gather", schema.EMBEDDING)


def eos_ids(loaded: LoadedModel) -> tuple[int, ...]:
    """Every token that ends an answer: those of the tokenizer, the generation config and the model config."""
    generation = getattr(loaded.model, "generation_config", None)
    sources = (loaded.tokenizer, generation, loaded.config, loaded.config.get_text_config())
    found: set[int] = set()
    for ids in (getattr(source, "eos_token_id", None) for source in sources):
        found |= set(ids) if isinstance(ids, list | tuple) else {ids} if ids is not None else set()
    return tuple(sorted(found))


def _write_tokenizer(folder: Path, loaded: LoadedModel) -> None:
    assert loaded.tokenizer is not None
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        with _os_errors():
            loaded.tokenizer.save_pretrained(scratch)
        for name in _TOKENIZER_FILES:
            if (Path(scratch) / name).is_file():
                shutil.move(Path(scratch) / name, folder / name)


@contextmanager
def _os_errors() -> Iterator[None]:
    """The tokenizers library says a full disk as a plain Exception: make it an OSError again."""
    try:
        yield
    except Exception as error:
        code = re.search(r"\(os error (\d+)\)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1]))) from error
