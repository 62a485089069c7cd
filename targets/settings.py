"""What a user asks of a cache, and the rules that it makes of one layer: the same for `export` and `plan`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from kvedge.targets.block_weights import bits_per_weight
from kvedge.targets.errors import require
from kvedge.targets.kinds import Kind
from kvedge.targets.spec import DEFAULT_KIND, DEFAULT_PAGE, DEFAULT_RECENT, DEFAULT_SINKS, PageRules

_MOST_LAYERS = 1000
_LAYER_KIND = re.compile(r"(?P<layers>\d+(-\d+)?(,\d+(-\d+)?)*)=(?P<kind>\w+)")


class WeightType(Enum):
    """How weights are stored in an artifact. The CPU engine unpacks FP16 to float32 when it loads."""

    FP32 = "fp32"
    FP16 = "fp16"
    INT8 = "int8"
    INT4 = "int4"

    @property
    def bits(self) -> int | None:
        """Bits of a code, None for floats."""
        return {WeightType.INT8: 8, WeightType.INT4: 4}.get(self)

    @property
    def stored_bits(self) -> float:
        """Bits of a stored weight, scales included."""
        floats = {WeightType.FP32: 32.0, WeightType.FP16: 16.0}
        return floats[self] if self.bits is None else bits_per_weight(self.bits)

    @property
    def loaded_bits(self) -> float:
        """Bits of a weight in memory."""
        return WeightType.FP32.stored_bits if self.bits is None else self.stored_bits


@dataclass(frozen=True, kw_only=True)
class CacheSettings:
    """The cache as asked for on the command line.

    Args:
        kind: bits of keys and values.
        window: keys that a query sees besides the sinks; None for all.
        sinks: first tokens that are never forgotten; recent: newest tokens that stay exact.
        page: tokens a page.
        layer_kinds: layers with another kind, by number.

    Raises:
        KvedgeError: numbers that cannot work.
    """

    kind: Kind = DEFAULT_KIND
    window: int | None = None
    sinks: int = DEFAULT_SINKS
    recent: int = DEFAULT_RECENT
    page: int = DEFAULT_PAGE
    layer_kinds: tuple[tuple[int, Kind], ...] = ()

    def __post_init__(self) -> None:
        layer_rules(None, self)

    def check_layers(self, num_layers: int) -> None:
        """Check the numbers of layers against those that the model has.

        Raises:
            KvedgeError: there is no such layer.
        """
        beyond = [layer for layer, _ in self.layer_kinds if layer >= num_layers]
        require(not beyond, "--kv-layer", expected=f"layers 0 to {num_layers - 1}", got=", ".join(map(str, beyond)))

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """All that were asked for, those of single layers too."""
        return (self.kind, *(kind for _, kind in self.layer_kinds))

    def of_layer(self, layer: int) -> CacheSettings:
        """The settings of one layer."""
        return replace(self, kind=dict(self.layer_kinds).get(layer, self.kind), layer_kinds=())

    def check_positions(self, max_positions: int) -> None:
        """Check window and sinks against the model's positions, before any long work.

        Raises:
            KvedgeError: together they are more.
        """
        layer_rules(None, self).check_positions(max_positions)


def parse_layer_kinds(options: Iterable[str]) -> tuple[tuple[int, Kind], ...]:
    """Kinds of layers from options such as 0,29=int8 and 10-12=int4; the last one that names a layer counts.

    Raises:
        KvedgeError: one of another form, or an unknown kind.
    """
    found: dict[int, Kind] = {}
    for option in options:
        match = _LAYER_KIND.fullmatch(option.replace(" ", ""))
        require(
            match is not None, "--kv-layer", expected="layers and a kind, such as 0,29=int8 or 0-3=int4", got=option
        )
        assert match is not None
        for part in match["layers"].split(","):
            first, _, last = part.partition("-")
            numbers = range(int(first), int(last or first) + 1)
            fine = 0 < len(numbers) <= _MOST_LAYERS
            require(fine, "--kv-layer", expected=f"1 to {_MOST_LAYERS} layers, the smaller number first", got=part)
            found |= dict.fromkeys(numbers, Kind.parse(match["kind"]))
    return tuple(sorted(found.items()))


def layer_rules(native_window: int | None, settings: CacheSettings) -> PageRules:
    """Rules of a layer.

    A layer with a sliding window of its own keeps the smaller of both windows, and gets no sinks: what it
    forgets is part of the model.

    Args:
        native_window: the model's own window for this layer, the current token included; None for all.
        settings: what the user asked for, of this layer.
    """
    windows = [window for window in (native_window, settings.window) if window is not None]
    return PageRules(
        page=settings.page,
        sinks=settings.sinks if native_window is None else 0,
        recent=settings.recent,
        window=min(windows, default=None),
        exact=settings.kind.is_exact,
    )
