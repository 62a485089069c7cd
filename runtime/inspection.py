"""What is in an artifact: the form of its layers, what a token sees, and whether the files are whole."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from kvedge.runtime.layer_groups import group_alike
from kvedge.runtime.limits import step_limits
from kvedge.targets import engine_file
from kvedge.targets import manifest as artifact
from kvedge.targets.errors import require
from kvedge.targets.manifest import FileInfo, Manifest
from kvedge.targets.plan import MemoryPlan
from kvedge.targets.profiles import limits_plan
from kvedge.targets.spec import LayerSpec, PageRules
from kvedge.targets.visibility import page_of, window_start

USUAL_TOKENS = 10_000


class FileState(Enum):
    """How a file compares with the manifest."""

    WHOLE = "whole"
    MISSING = "missing"
    OTHER_SIZE = "another size"
    OTHER_BYTES = "other bytes"


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What the newest token sees: orders of tokens, ends not included.

    Args:
        sinks: first tokens, exact; window: what it sees besides.
        exact: the part of the window that it reads exactly; the rest is read from packed pages.
    """

    sinks: range
    window: range
    exact: range

    @property
    def packed(self) -> range:
        """The part of the window that is read from packed pages."""
        return range(self.window.start, self.exact.start)


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """An artifact, looked at.

    Args:
        folder: where it is; manifest: what it says of itself.
        groups: its layers, those of the same form together.
        plan: memory of one session with as many tokens as the model has positions, or of a built engine's sizes.
        engines: those in its folder by name, and how each is (kvedge.targets.engine_file).
        tokens: number of tokens after which the sights are given.
        files: state of every file of the manifest; unlisted: other files in the folder.
    """

    folder: Path
    manifest: Manifest
    groups: tuple[tuple[LayerSpec, ...], ...]
    plan: MemoryPlan
    engines: dict[str, str]
    tokens: int
    files: dict[str, FileState]
    unlisted: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """Whether every file is as it was written, engines included."""
        engines = engine_file.DAMAGED not in self.engines.values()
        return engines and all(state is FileState.WHOLE for state in self.files.values())

    @property
    def bits_per_value(self) -> float:
        """Bits of a remembered key or value: the whole cache, exact pages and room to spare included."""
        return 16 * self.plan.kv_bytes / self.plan.fp16_bytes


def inspect_artifact(folder: Path, tokens: int | None) -> Inspection:
    """Look at an artifact; every byte of it is read.

    Args:
        folder: where it is.
        tokens: tokens of the text whose end is looked at; None for a number that shows what is forgotten.

    Raises:
        KvedgeError: no artifact, or more tokens than it takes.
    """
    manifest = artifact.read(folder)
    cache = manifest.cache
    files = {name: file_state(folder / name, info) for name, info in manifest.files.items()}
    known = {*files, artifact.MANIFEST, engine_file.FOLDER}
    return Inspection(
        folder=folder,
        manifest=manifest,
        groups=tuple(tuple(group) for group in group_alike(cache.layers, form)),
        plan=limits_plan(cache, step_limits(manifest)),
        engines=engine_file.engine_states(folder, manifest),
        tokens=_tokens(manifest, tokens),
        files=files,
        unlisted=tuple(sorted(path.name for path in folder.iterdir() if path.name not in known)),
    )


def form(layer: LayerSpec) -> tuple[object, ...]:
    """All that can differ between layers, but their number."""
    shape = layer.heads, layer.kv_heads, layer.head_dim
    return *shape, layer.kind, layer.rules, layer.rope, layer.scale, layer.softcap


def sight(rules: PageRules, tokens: int) -> Sight:
    """What the last of so many tokens sees."""
    query, sinks = tokens - 1, rules.sinks
    first = window_start(query, sinks, rules.window)
    exact = sinks + (page_of(query, sinks, rules.page) - rules.recent // rules.page) * rules.page
    return Sight(
        sinks=range(min(sinks, tokens)),
        window=range(first, max(first, tokens)),
        exact=range(max(first, exact) if rules.packs else first, max(first, tokens)),
    )


def file_state(path: Path, info: FileInfo) -> FileState:
    """Compare a file with what the manifest says of it."""
    if not path.is_file():
        return FileState.MISSING
    if path.stat().st_size != info.bytes:
        return FileState.OTHER_SIZE
    return FileState.WHOLE if artifact.describe(path) == info else FileState.OTHER_BYTES


def _tokens(manifest: Manifest, asked: int | None) -> int:
    cache = manifest.cache
    limit = None if cache.is_endless else cache.max_positions
    if asked is None:
        reach = max((rules.window or 0) + rules.sinks for rules in cache.groups)
        return min(max(USUAL_TOKENS, 2 * reach), limit or 2 * reach + USUAL_TOKENS)
    expected = "1 or more tokens" if limit is None else f"1 to the model's {limit} positions"
    require(asked > 0 and (limit is None or asked <= limit), "--after", expected=expected, got=asked)
    return asked
