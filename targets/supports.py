"""Whether a target can run a cache and weights, and why not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

from kvedge.targets import names
from kvedge.targets.devices import Target
from kvedge.targets.errors import KvedgeError, require
from kvedge.targets.kinds import FLOAT_CHIPS, USE_INT8, Kind
from kvedge.targets.manifest import Manifest
from kvedge.targets.settings import CacheSettings, WeightType
from kvedge.targets.spec import CacheSpec


def require_export(target: Target, settings: CacheSettings, weights: WeightType) -> None:
    """Refuse what the target cannot run.

    Raises:
        KvedgeError: what is wrong, what would be right, and what to do.
    """
    for error in _objections(target, settings.kinds, (settings.page,), weights):
        raise error


def objections(target: Target, cache: CacheSpec, weights: WeightType | None) -> list[str]:
    """Reasons why the target cannot run a cache and weights, none if it can; `weights` is None where unknown."""
    kinds, pages = [layer.kind for layer in cache.layers], [layer.rules.page for layer in cache.layers]
    return [str(error) for error in _objections(target, kinds, pages, weights)]


def artifact_objections(target: Target, manifest: Manifest) -> list[str]:
    """The same of an artifact, whose engine and kernels are settled."""
    weights = WeightType(manifest.model.weights)
    if manifest.engine is not target.engine:
        return [f"the artifact is for {manifest.engine.label}; export it again with --target {target.name}"]
    try:
        require_chip(target, manifest, "the artifact")
    except KvedgeError as error:
        return [str(error)]
    return objections(target, manifest.cache, weights)


def require_chip(target: Target, manifest: Manifest, what: str) -> None:
    """Refuse an artifact that has kernels, but for none of the target's chips.

    Raises:
        KvedgeError: which it has.
    """
    there = chips_of(manifest)
    fine = not there or any(sm in target.sms for sm in there)
    got = ", ".join(f"SM{sm}" for sm in there)
    fix = f"export it again with --target {target.name}"
    require(fine, what, expected=f"kernels for {target.chips}", got=got, fix=fix)


def without_target(kinds: Iterable[Kind]) -> None:
    """Refuse kinds that a device must be named for.

    Raises:
        KvedgeError: which.
    """
    for kind in kinds:
        expected = f"a --target with kvedge's GPU kernels on {FLOAT_CHIPS}"
        require(not kind.has_floats, f"{kind.value} pages", expected=expected, got="no --target", fix=USE_INT8)


def other_chip(cache: CacheSpec, sm: int) -> str:
    """What to do where an artifact with this cache has no kernels for a chip."""
    unread = [layer.kind.value for layer in cache.layers if not layer.is_read_by(sm)]
    if unread:
        return f"export again without {unread[0]}, which needs {FLOAT_CHIPS}"
    return "export again with a --target that has this chip"


def chips_of(manifest: Manifest) -> list[int]:
    """Compute capabilities x 10 that an artifact has kernels for, none where its engine takes none."""
    return kernel_chips(manifest, 0)


def kernel_chips(manifest: Manifest, form: int) -> list[int]:
    """Compute capabilities x 10 that an artifact has the kernels of a form of layer for."""
    found = filter(None, map(names.kernels_of, manifest.files))
    return sorted(sm for of_form, sm in found if of_form == form)


def engine_note(target: Target) -> str | None:
    """What to know of an engine with which this version has not run on any device."""
    if not target.sms:
        return None
    engine = target.engine
    return f"this version was not run with {engine.label} on a GPU yet, only {engine.checked} (docs/jetson.md)"


def require_kernels_for(kinds: Iterable[Kind], sms: Iterable[int]) -> None:
    """Refuse chips that do not read every kind.

    Raises:
        KvedgeError: which chip, and which kind.
    """
    for kind, sm in product(kinds, sms):
        kind.require_read_by(sm, f"--sm of {kind.value} pages")


def _objections(
    target: Target, kinds: Iterable[Kind], pages: Iterable[int], weights: WeightType | None
) -> Iterator[KvedgeError]:
    for kind in dict.fromkeys(kinds):
        yield from _kind(target, kind)
    for page in dict.fromkeys(pages):
        yield from _page(target, page)
    if weights is not None:
        yield from _weights(target, weights)


def _kind(target: Target, kind: Kind) -> Iterator[KvedgeError]:
    if kind in target.kinds:
        return
    what, got = f"{kind.value} pages on {target.name}", f"{target.engine.label}, {target.chips}"
    yield KvedgeError(what, expected=f"kvedge's GPU kernels on {FLOAT_CHIPS}", got=got, fix=USE_INT8)


def _page(target: Target, page: int) -> Iterator[KvedgeError]:
    if target.pages is None or page in target.pages:
        return
    sizes = ", ".join(map(str, target.pages))
    what = f"{target.name} cannot read pages of {page} tokens"
    yield KvedgeError(what, expected=f"one of {sizes}", got=page, fix="change --page, and --recent to a multiple of it")


def _weights(target: Target, weights: WeightType) -> Iterator[KvedgeError]:
    if weights in target.weights:
        return
    others = ", ".join(each.value for each in target.weights)
    what = f"{target.name} cannot multiply {weights.value} weights"
    got = f"{weights.value} for {target.engine.label}"
    yield KvedgeError(what, expected=f"one of {others}", got=got, fix="choose another --weights")
