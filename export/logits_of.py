"""Logits of some tokens only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from transformers import PreTrainedModel


@contextmanager
def logits_of(model: PreTrainedModel, index: Tensor) -> Iterator[None]:
    """While the block runs, `model` gives the logits of tokens `index`, int64 [kept].

    Most models take logits_to_keep, but not all, and its indexing becomes a dozen nodes; this one is a Gather.
    """
    head: nn.Module = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    hook = head.register_forward_pre_hook(lambda _, inputs: (inputs[0].index_select(1, index), *inputs[1:]))
    try:
        yield
    finally:
        hook.remove()
