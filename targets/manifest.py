"""The manifest of an artifact folder: what the model is, what its cache is, and which bytes belong to it.

    manifest.json       this record, with a digest over itself and a SHA-256 of every other file
    model.onnx          the graph; weights in model.onnx.data
    kernels.*           compiled kernels for GPUs (optional)
    tokenizer.json      and what else the tokenizer needs (optional)

The format version is raised whenever a runtime would misread an artifact of another version.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvedge.targets import names
from kvedge.targets.devices import EngineKind
from kvedge.targets.errors import KvedgeError, require
from kvedge.targets.kinds import Kind
from kvedge.targets.packing import LAYOUT_NAME
from kvedge.targets.profiles import StepLimits
from kvedge.targets.spec import POSITION_FRAME, CacheSpec, LayerSpec, PageRules, RopeSpec

FORMAT_VERSION = 5
MANIFEST = "manifest.json"
GRAPH = "model.onnx"
WEIGHTS = "model.onnx.data"
TOKENIZER = "tokenizer.json"

_BLOCK = 1 << 22


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """What the artifact was made from.

    Args:
        name: for people.
        model_type: the architecture.
        vocab_size: width of the logits.
        weights: how weights are stored; step_bytes: stored bytes of those that a decode step reads as a whole.
        eos_ids: every token that ends an answer.
    """

    name: str
    model_type: str
    vocab_size: int
    weights: str
    step_bytes: int
    eos_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class FileInfo:
    """Size and SHA-256 of one file."""

    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything the runtime knows about an artifact.

    Args:
        model: what it was made from; engine: what its graph is for.
        kind: that of most layers, as it was asked for; cache: all layers.
        limits: sizes that its engine is built for, None where they are chosen when it is loaded.
        files: all others of the folder, by name.
    """

    model: ModelInfo
    engine: EngineKind
    kind: Kind
    cache: CacheSpec
    limits: StepLimits | None
    files: dict[str, FileInfo]

    @property
    def is_exact(self) -> bool:
        """Whether no layer ever packs anything."""
        return all(layer.kind.is_exact for layer in self.cache.layers)

    @property
    def engine_sources(self) -> tuple[str, ...]:
        """Files that an engine is built from."""
        return tuple(name for name in self.files if name in (GRAPH, WEIGHTS) or names.kernels_of(name))

    @property
    def kinds(self) -> str:
        """Kinds of the layers for people, in order of first use: int3, or int8 + int3."""
        return " + ".join(dict.fromkeys(layer.kind.value for layer in self.cache.layers))


def describe(path: Path) -> FileInfo:
    """Size and hash of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return FileInfo(bytes=path.stat().st_size, sha256=digest.hexdigest())


def write(folder: Path, manifest: Manifest) -> None:
    """Write manifest.json into a folder."""
    body = _to_json(manifest)
    (folder / MANIFEST).write_text(json.dumps(body | {"digest": _digest(body)}, indent=1) + "\n", encoding="utf-8")


def load(folder: Path) -> Manifest:
    """Read and check an artifact folder: manifest, then every file against its size and hash.

    Raises:
        KvedgeError: not an artifact, a newer format, or bytes that are not those that were written.
    """
    manifest = read(folder)
    _check_files(folder, manifest.files)
    return manifest


def load_to_run(folder: Path) -> Manifest:
    """As load, but for what only the build of an engine reads: graph, weights and kernels are in the engine.

    Raises:
        KvedgeError: as load.
    """
    manifest = read(folder)
    inside = manifest.engine_sources if manifest.engine.is_built else ()
    _check_files(folder, {name: info for name, info in manifest.files.items() if name not in inside})
    return manifest


def fingerprint(manifest: Manifest) -> str:
    """Digest of all that decides what is in the cache after given tokens: model, weights and cache."""
    facts = _to_json(manifest)
    return _digest(facts | {"files": {name: facts["files"][name] for name in (GRAPH, WEIGHTS)}})


def read(folder: Path) -> Manifest:
    """Read and check manifest.json alone.

    Raises:
        KvedgeError: as load, but for the other files.
    """
    path = folder / MANIFEST
    export = "make one with `kvedge export MODEL -o DIR`"
    got = "a file" if folder.is_file() else "nothing there"
    require(folder.is_dir(), f"artifact {folder}", expected="a folder", got=got, fix=export)
    require(path.is_file(), f"artifact {folder}", expected=f"a {MANIFEST} in it", got="none", fix=export)
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        version, digest = body["format_version"], body.pop("digest")
    except OSError as error:
        raise KvedgeError(f"{path}", expected="to read it", got=error.strerror) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _damaged(path, "a complete manifest") from None
    newer = isinstance(version, int) and version > FORMAT_VERSION
    require(
        not newer, f"artifact {folder}", expected=f"format {FORMAT_VERSION} or older", got=version, fix="update kvedge"
    )
    if digest != _digest(body):
        raise _damaged(path, "a manifest whose digest fits")
    same = version == FORMAT_VERSION
    require(same, f"artifact {folder}", expected=f"format {FORMAT_VERSION}", got=version, fix="export it again")
    return _from_json(body)


def _check_files(folder: Path, files: dict[str, FileInfo]) -> None:
    for name, info in files.items():
        _check_file(folder / name, info)


def _check_file(path: Path, info: FileInfo) -> None:
    if not path.is_file():
        raise _damaged(path, "the file", "nothing there")
    size = path.stat().st_size
    if size != info.bytes:
        raise _damaged(path, f"{info.bytes} bytes", f"{size}")
    found = describe(path)
    if found != info:
        raise _damaged(path, f"SHA-256 {info.sha256[:12]}", found.sha256[:12])


def _damaged(path: Path, expected: str, got: str = "other bytes") -> KvedgeError:
    return KvedgeError(f"damaged artifact: {path}", expected=expected, got=got, fix="copy or export it again")


def _digest(body: dict[str, Any]) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _to_json(manifest: Manifest) -> dict[str, Any]:
    cache = manifest.cache
    return {
        "format_version": FORMAT_VERSION,
        "model": asdict(manifest.model),
        "engine": manifest.engine.value,
        "limits": manifest.limits and asdict(manifest.limits),
        "kind": manifest.kind.value,
        "layout": LAYOUT_NAME,
        "position_frame": POSITION_FRAME,
        "max_positions": cache.max_positions,
        "groups": [asdict(rules) for rules in cache.groups],
        "ropes": [asdict(rope) for rope in cache.ropes],
        "layers": [_layer_to_json(cache, layer) for layer in cache.layers],
        "files": {name: asdict(info) for name, info in sorted(manifest.files.items())},
    }


def _layer_to_json(cache: CacheSpec, layer: LayerSpec) -> dict[str, Any]:
    return {
        "index": layer.index,
        "heads": layer.heads,
        "kv_heads": layer.kv_heads,
        "head_dim": layer.head_dim,
        "kind": layer.kind.value,
        "group": cache.group_of(layer),
        "rope": layer.rope,
        "scale": layer.scale,
        "softcap": layer.softcap,
    }


def _from_json(body: dict[str, Any]) -> Manifest:
    require(body["layout"] == LAYOUT_NAME, "page layout", expected=LAYOUT_NAME, got=body["layout"], fix="export again")
    frame = body["position_frame"]
    require(frame == POSITION_FRAME, "position frame", expected=POSITION_FRAME, got=frame, fix="export again")
    groups = [PageRules(**rules) for rules in body["groups"]]
    ropes = [RopeSpec(**rope | {"inv_freq": tuple(rope["inv_freq"])}) for rope in body["ropes"]]
    model = body["model"]
    return Manifest(
        model=ModelInfo(**model | {"eos_ids": tuple(model["eos_ids"])}),
        engine=EngineKind(body["engine"]),
        limits=body["limits"] and StepLimits(**body["limits"]),
        kind=Kind(body["kind"]),
        cache=CacheSpec(
            max_positions=body["max_positions"],
            layers=tuple(_layer_from_json(layer, groups) for layer in body["layers"]),
            ropes=tuple(ropes),
        ),
        files={name: FileInfo(**info) for name, info in body["files"].items()},
    )


def _layer_from_json(layer: dict[str, Any], groups: list[PageRules]) -> LayerSpec:
    facts = {key: value for key, value in layer.items() if key not in ("group", "kind")}
    return LayerSpec(**facts, kind=Kind(layer["kind"]), rules=groups[layer["group"]])
