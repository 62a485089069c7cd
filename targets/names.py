"""Names of the graph's inputs and outputs, and of files that belong to it, written once for both sides."""

from __future__ import annotations

import re

INPUT_IDS = "input_ids"  # int64 [B, N]
LOGITS_INDEX = "logits_index"  # int64 [rows]: which of the N new tokens get logits
LOGITS = "logits"  # float32 [B, rows, vocab]
CONTEXT = "context"  # int32 [B]: tokens that each row already holds
NUM_NEW = "num_new"  # int32 [B]: valid new tokens of each row


def cos(rope: int) -> str:
    """float32 [B, N, pairs]."""
    return f"cos.{rope}"


def sin(rope: int) -> str:
    """float32 [B, N, pairs]."""
    return f"sin.{rope}"


def sink_cos(group: int, rope: int) -> str:
    """float32 [B, N, pairs]: turn of each query towards the sinks."""
    return f"sink_cos.{group}.{rope}"


def sink_sin(group: int, rope: int) -> str:
    """float32 [B, N, pairs]."""
    return f"sink_sin.{group}.{rope}"


def hot_table(group: int) -> str:
    """int32 [B, hot slots]: page ids, -1 for none."""
    return f"hot_table.{group}"


def packed_table(group: int) -> str:
    """int32 [B, packed slots]: page ids, -1 for none; circular."""
    return f"packed_table.{group}"


def hot(layer: int) -> str:
    """[hot pages, 2, H, T, D], the spec's hot dtype."""
    return f"hot.{layer}"


def hot_out(layer: int) -> str:
    """As hot; bound to the same buffer."""
    return f"hot_out.{layer}"


def packed(layer: int) -> str:
    """int32 [packed pages, words]; absent where nothing is packed."""
    return f"packed.{layer}"


def packed_out(layer: int) -> str:
    """As packed; bound to the same buffer."""
    return f"packed_out.{layer}"


def pages_read(layer: int) -> str:
    """int32 [B]: packed pages that the layer read in this step."""
    return f"pages_read.{layer}"


def hidden(block: int, number: int) -> str:
    """[B, N, widths]: what a block of layers hands on, where a model is cut into several graphs."""
    return f"hidden.{block}.{number}"


def kernels(form: int, sm: int) -> str:
    """File with the kernels of the layers of one form, for one compute capability."""
    return f"kernels.{form}.sm{sm}.safetensors"


def kernels_of(file: str) -> tuple[int, int] | None:
    """Form and compute capability of a file with kernels, as `kernels` takes them; None for other files."""
    found = re.fullmatch(r"kernels\.(\d+)\.sm(\d+)\.safetensors", file)
    return (int(found[1]), int(found[2])) if found else None
