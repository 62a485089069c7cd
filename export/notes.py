"""What an export should say although nothing is wrong."""

from __future__ import annotations

from kvedge.export.key_bias import large_biases
from kvedge.export.settings import CacheSettings
from kvedge.export.trace import TracedModel
from kvedge.targets.spec import CacheSpec


def notes(traced: TracedModel, settings: CacheSettings, cache: CacheSpec) -> tuple[str, ...]:
    """Sentences about settings that some layers cannot take, and about what was done for layers that need it."""
    return tuple(note for note in (_windows(traced, settings), _biases(traced, cache)) if note)


def _windows(traced: TracedModel, settings: CacheSettings) -> str | None:
    """A sliding window of the model's own keeps its size where it is smaller, and has no sinks."""
    own = {facts.layer: facts.window for facts in traced.layers if facts.window}
    kept = settings.window is None or any(settings.window > window for window in own.values())
    if not own or not (kept or settings.sinks):
        return None
    sizes = " or ".join(map(str, sorted(set(own.values()))))
    wanted = "all tokens" if settings.window is None else f"a window of {settings.window}"
    one = len(own) == 1
    return (
        f"{_layers(own)} {'has' if one else 'have'} a sliding window of the model's own ({sizes} tokens): "
        f"{'it sees' if one else 'they see'} that instead of {wanted} where it is smaller, and no sinks"
    )


def _biases(traced: TracedModel, cache: CacheSpec) -> str | None:
    packing = {layer.index for layer in cache.layers if layer.rules.packs}
    biases = {layer: norm for layer, norm in large_biases(traced.key_biases).items() if layer in packing}
    if not biases:
        return None
    return (
        f"{_layers(biases)}: a large bias on the keys (norm up to {max(biases.values()):.0f} a head); it is kept out "
        "of the packed codes and added back exactly"
    )


def _layers(numbers: dict[int, int] | dict[int, float]) -> str:
    return f"{'layer' if len(numbers) == 1 else 'layers'} {', '.join(map(str, numbers))}"
