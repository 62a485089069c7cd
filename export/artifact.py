"""Write an artifact folder: into a temporary neighbour first, renamed only when it is complete and checked."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx_ir as ir

from kvedge.export.source import LoadedModel
from kvedge.targets import manifest as artifact
from kvedge.targets.errors import KvedgeError, require
from kvedge.targets.kinds import Kind
from kvedge.targets.manifest import Manifest, ModelInfo
from kvedge.targets.spec import CacheSpec

_TOKENIZER_FILES = (artifact.TOKENIZER, "tokenizer_config.json", "chat_template.jinja")


@contextmanager
def partial_folder(target: Path) -> Iterator[Path]:
    """A folder that becomes `target` if the block ends well, and vanishes if not.

    Raises:
        KvedgeError: target is there already, or cannot be written.
    """
    require_new(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
    except OSError as error:
        raise KvedgeError(
            f"output {target}", expected="a place to write", got=error.strerror, fix="choose another -o"
        ) from error
    try:
        yield folder
        folder.chmod(0o755)
        folder.replace(target)
    except OSError as error:
        raise KvedgeError(
            f"writing {target}", got=error.strerror or str(error), fix="free some space, or choose another -o"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def require_new(target: Path) -> None:
    """Refuse to write over anything.

    Raises:
        KvedgeError: something is there already.
    """
    free = not target.exists() or (target.is_dir() and not any(target.iterdir()))
    fix = "remove it, or choose another -o"
    require(free, f"output {target}", expected="a new folder", got="one that is there", fix=fix)


def write_graph(model: ir.Model, folder: Path) -> Path:
    """Write the graph with its weights beside it."""
    path = folder / artifact.GRAPH
    ir.save(model, path, external_data=artifact.WEIGHTS)
    return path


def write_twin(model: ir.Model, written: Path, name: str) -> Path:
    """Write a graph that uses the weights of one already written."""
    stored = ir.load(written).graph.initializers
    for key, value in model.graph.initializers.items():
        value.const_value = stored[key].const_value
    path = written.with_name(name)
    ir.save(model, path)
    return path


def write_rest(folder: Path, loaded: LoadedModel, kind: Kind, cache: CacheSpec, weights: str) -> Manifest:
    """Write tokenizer and manifest; the folder is then a complete artifact."""
    if loaded.tokenizer is not None:
        _write_tokenizer(folder, loaded)
    config = loaded.config.get_text_config()
    info = ModelInfo(
        name=loaded.name,
        model_type=loaded.config.model_type,
        vocab_size=config.vocab_size,
        weights=weights,
        eos_ids=eos_ids(loaded),
    )
    files = {path.name: artifact.describe(path) for path in sorted(folder.iterdir())}
    manifest = Manifest(model=info, kind=kind, cache=cache, files=files)
    artifact.write(folder, manifest)
    return manifest


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
        loaded.tokenizer.save_pretrained(scratch)
        for name in _TOKENIZER_FILES:
            if (Path(scratch) / name).is_file():
                shutil.move(Path(scratch) / name, folder / name)
