"""Artifact folders: the manifest comes back as it was written, and no damage passes."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_engines import Artifacts

from kvedge.runtime.engine import Engine
from kvedge.targets import manifest as artifact
from kvedge.targets.devices import EngineKind
from kvedge.targets.errors import KvedgeError
from kvedge.targets.kinds import Kind
from kvedge.targets.manifest import FileInfo, Manifest, ModelInfo
from kvedge.targets.profiles import StepLimits
from kvedge.targets.spec import CacheSpec, LayerSpec, PageRules, RopeSpec

FILES = (artifact.MANIFEST, artifact.GRAPH, artifact.WEIGHTS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Artifacts(tmp_path_factory.mktemp("artifacts")).folder("int3")


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "artifact"))


def full_manifest() -> Manifest:
    """Layers that differ in everything in which they may."""
    rules = (
        PageRules(page=16, sinks=4, recent=32, window=None, exact=False),
        PageRules(page=16, sinks=0, recent=16, window=512, exact=True),
        PageRules(page=16, sinks=4, recent=32, window=100, exact=False),
    )
    facts = ((Kind.INT3, rules[0], 1, 0.0), (Kind.FP, rules[1], None, 30.0), (Kind.K4V2, rules[2], 0, 0.0))
    layers = tuple(
        LayerSpec(
            index=2 * number + 1,
            heads=6,
            kv_heads=3,
            head_dim=8 * (number + 1),
            kind=kind,
            rules=rule,
            rope=rope,
            scale=1 / 3 + number,
            softcap=softcap,
        )
        for number, (kind, rule, rope, softcap) in enumerate(facts)
    )
    ropes = (
        RopeSpec(inv_freq=(1.0, 1 / 3, 1e-7), attention_scaling=1.1386293, interleaved=False),
        RopeSpec(inv_freq=(0.1,), attention_scaling=1.0, interleaved=True),
    )
    model = ModelInfo(
        name="naïve ☃", model_type="llama", vocab_size=49152, weights="fp16", step_bytes=7, eos_ids=(0, 2, 128009)
    )
    return Manifest(
        model=model,
        engine=EngineKind.TENSORRT,
        kind=Kind.INT3,
        cache=CacheSpec(max_positions=4096, layers=layers, ropes=ropes),
        limits=StepLimits(context=4096, chunk=128, sessions=2),
        files={"model.onnx": FileInfo(bytes=7, sha256="ab" * 32), "a": FileInfo(bytes=0, sha256="")},
    )


def test_a_manifest_comes_back_as_it_was(tmp_path: Path) -> None:
    manifest = full_manifest()
    artifact.write(tmp_path, manifest)
    first = (tmp_path / artifact.MANIFEST).read_bytes()
    assert artifact.read(tmp_path) == manifest
    artifact.write(tmp_path, artifact.read(tmp_path))
    assert (tmp_path / artifact.MANIFEST).read_bytes() == first


def test_every_field_counts() -> None:
    """Equality of manifests sees what is inside, so the test above says something."""
    one, other = full_manifest(), full_manifest()
    assert one == other
    layer = replace(other.cache.layers[1], softcap=31.0)
    layers = (other.cache.layers[0], layer, other.cache.layers[2])
    assert one != replace(other, cache=replace(other.cache, layers=layers))


def test_the_manifest_lists_every_other_file(folder: Path) -> None:
    manifest = artifact.load(folder)
    assert set(manifest.files) == {path.name for path in folder.iterdir()} - {artifact.MANIFEST}
    for name, info in manifest.files.items():
        assert info.bytes == (folder / name).stat().st_size


# ---- Damage.


def flip(path: Path, at: float) -> None:
    """Flip a bit of the byte at this share of the file."""
    data = bytearray(path.read_bytes())
    data[int(at * (len(data) - 1))] ^= 1
    path.write_bytes(bytes(data))


DAMAGES: dict[str, Callable[[Path], None]] = {
    "first byte": lambda path: flip(path, 0.0),
    "a byte": lambda path: flip(path, 0.4),
    "last byte": lambda path: flip(path, 1.0),
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "cut by one": lambda path: path.write_bytes(path.read_bytes()[:-2]),
    "cut in half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"}"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named(name: str, damage: str, folder: Path) -> None:
    Engine.load(folder, threads=1)  # the copy is good
    DAMAGES[damage](folder / name)
    with pytest.raises(KvedgeError) as caught:
        Engine.load(folder, threads=1)
    message = str(caught.value)
    assert str(folder) in message and re.search(rf"\b{re.escape(name)}(;| in it)", message), message


def test_no_flipped_bit_of_a_manifest_passes(folder: Path) -> None:
    """But for the last digit of a number that means the same number."""
    path, whole, passed = folder / artifact.MANIFEST, artifact.read(folder), 0
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        try:
            assert artifact.read(folder) == whole
            passed += 1
        except KvedgeError as error:
            newer = f"artifact {folder}; expected format {artifact.FORMAT_VERSION} or older; got"
            assert str(error).startswith((f"damaged artifact: {path}; expected", newer))
    assert passed <= 4


NO_MANIFEST = ("[]", "null", "7", '"text"', "{}", '{"format_version": 1}', '{"digest": ""}', "{", "\ufeff")


@pytest.mark.parametrize("text", NO_MANIFEST)
def test_what_is_no_manifest(text: str, folder: Path) -> None:
    (folder / artifact.MANIFEST).write_text(text, encoding="utf-8")
    with pytest.raises(KvedgeError, match=r"^damaged artifact: .*manifest\.json; expected a complete"):
        artifact.read(folder)


def test_a_newer_format_asks_for_a_newer_kvedge(folder: Path) -> None:
    path = folder / artifact.MANIFEST
    body = json.loads(path.read_text(encoding="utf-8"))
    newer = body | {"format_version": artifact.FORMAT_VERSION + 1, "layers": "?"}
    path.write_text(json.dumps(newer), encoding="utf-8")
    version = artifact.FORMAT_VERSION
    want = f"artifact {folder}; expected format {version} or older; got {version + 1}; update kvedge"
    with pytest.raises(KvedgeError, match=f"^{re.escape(want)}$"):
        Engine.load(folder)


def test_an_older_format_asks_for_another_export(folder: Path) -> None:
    """Its graph has another operator."""
    path = folder / artifact.MANIFEST
    body = json.loads(path.read_text(encoding="utf-8"))
    older = {key: value for key, value in body.items() if key != "digest"} | {"format_version": 1}
    canonical = json.dumps(older, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    path.write_text(json.dumps(older | {"digest": digest}), encoding="utf-8")
    want = f"artifact {folder}; expected format {artifact.FORMAT_VERSION}; got 1; export it again"
    with pytest.raises(KvedgeError, match=f"^{re.escape(want)}$"):
        Engine.load(folder)


def test_what_is_no_artifact(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for name, expected in (("nowhere", "a folder"), ("file", "a folder"), ("empty", "a manifest.json in it")):
        where = re.escape(str(tmp_path / name))
        with pytest.raises(KvedgeError, match=f"^artifact {where}; expected {expected}; .*kvedge export"):
            Engine.load(tmp_path / name)
