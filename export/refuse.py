"""Models that are refused by what their configuration says, before any long work."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

from kvedge.export.families import NO_EXPORT_YET
from kvedge.export.source import LoadedModel
from kvedge.targets.errors import require

_HEADS = ("num_attention_heads", "n_head", "n_heads")


def refuse_by_config(loaded: LoadedModel) -> None:
    """Refuse alibi and models without attention.

    Raises:
        KvedgeError: it is one of them.
    """
    config = loaded.config.get_text_config()
    what = f"{loaded.name} ({config.model_type})"
    expected = "rotary positions, or none"
    require(not _has_alibi(config), f"{what} has alibi positions", expected=expected, fix=NO_EXPORT_YET)
    attends = any(isinstance(getattr(config, key, None), int) for key in _HEADS)
    state = "a state that every token changes, not a cache"
    require(
        attends, f"{what} has no attention heads", expected="attention in every layer", got=state, fix=NO_EXPORT_YET
    )


def model_positions(loaded: LoadedModel) -> int:
    """Positions that the model was made for.

    Raises:
        KvedgeError: its configuration does not say.
    """
    positions: Any = getattr(loaded.config.get_text_config(), "max_position_embeddings", None)
    what = f"{loaded.name} ({loaded.config.model_type})"
    known = isinstance(positions, int)
    require(known, what, expected="max_position_embeddings in its config", got=positions, fix=NO_EXPORT_YET)
    return int(positions)


def _has_alibi(config: PretrainedConfig) -> bool:
    attention = getattr(config, "attn_config", None)
    inner = attention.get("alibi") if isinstance(attention, dict) else getattr(attention, "alibi", False)
    by_type = config.model_type == "bloom" or getattr(config, "position_embedding_type", None) == "alibi"
    return bool(getattr(config, "alibi", False) or inner or by_type)
