"""Whether a target can run a cache and weights, and why not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvedge.targets.devices import Target
from kvedge.targets.errors import KvedgeError
from kvedge.targets.kinds import RUNNABLE, Kind
from kvedge.targets.settings import CacheSettings, WeightType
from kvedge.targets.spec import CacheSpec

_FP8_SINCE = "SM89 or later"


def require_kinds(target: Target, names: Iterable[str]) -> None:
    """Refuse kinds, by their command-line names, that the target's chip cannot read.

    Raises:
        KvedgeError: an unknown kind, or one that the chip has no arithmetic for.
    """
    for name in names:
        _raise_first(_kind(target, Kind.named(name)))


def require_export(target: Target, settings: CacheSettings, weights: WeightType) -> None:
    """Refuse what the target cannot run.

    Raises:
        KvedgeError: what is wrong, what would be right, and what to do.
    """
    kinds = (settings.kind, *(kind for _, kind in settings.layer_kinds))
    _raise_first(_objections(target, kinds, (settings.page,), weights))


def objections(target: Target, cache: CacheSpec, weights: WeightType | None) -> list[str]:
    """Reasons why the target cannot run a cache and weights, none if it can; `weights` is None where unknown."""
    kinds = (layer.kind for layer in cache.layers)
    pages = (layer.rules.page for layer in cache.layers)
    return [str(error) for error in _objections(target, kinds, pages, weights)]


def engine_note(target: Target) -> str | None:
    """What to know of an engine with which this version has not run on any device."""
    if not target.sms:
        return None
    engine = target.engine
    return f"this version was not run with {engine.label} on a GPU yet, only {engine.checked} (docs/jetson.md)"


def _objections(
    target: Target, kinds: Iterable[Kind], pages: Iterable[int], weights: WeightType | None
) -> Iterator[KvedgeError]:
    for kind in dict.fromkeys(kinds):
        yield from _kind(target, kind)
    for page in dict.fromkeys(pages):
        yield from _page(target, page)
    if weights is not None:
        yield from _weights(target, weights)


def _raise_first(errors: Iterator[KvedgeError]) -> None:
    for error in errors:
        raise error


def _kind(target: Target, kind: Kind) -> Iterator[KvedgeError]:
    if kind in target.kinds:
        return
    others = ", ".join(each.value for each in target.kinds if each in RUNNABLE)
    expected = f"a chip that has fp8 ({_FP8_SINCE})" if kind is Kind.FP8 else f"one of {others}"
    what = f"{target.name} cannot read KV kind {kind.value}"
    yield KvedgeError(what, expected=expected, got=target.chips, fix="choose another --kv, such as int8")


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
