"""Prompts that an export is compared on.

One English sentence proves little: errors that come with large activations, or with tokens that attention
spreads over evenly, stay hidden in it. So: random tokens, one token again and again, the tokens that make the
largest activations in this very model, and a text in several scripts where there is a tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvedge.export.source import LoadedModel

TEXT = (
    "The window moves on; what it leaves behind is forgotten. پنجره پیش می‌رود و آنچه پشت سر می‌ماند فراموش می‌شود. "
    "窗口向前移动，留在后面的就被遗忘了。 النافذة تمضي إلى الأمام. Окно движется дальше. 창문은 계속 움직입니다。 "
    "खिड़की आगे बढ़ती है। 🪟🚶‍♀️🇮🇷 👨‍👩‍👧 ✅\n\n\tdef f(x: int) -> int:\n\t\treturn x << 2  # 4·x\n\n"
    "1234567890 3.14159 ½ ∑ ≤ … “quotes” — dash\r\n<b>&amp;</b> {{ braces }} \\u2603 ~~~~ ======== \n"
)

_CANDIDATES = 64  # of the smallest and of the largest embeddings each
_LOUDEST = 8
_SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """Token ids with a name for people."""

    name: str
    ids: tuple[int, ...]


def make_prompts(loaded: LoadedModel, length: int) -> tuple[Prompt, ...]:
    """Prompts of `length` tokens, the same for the same model."""
    rng = np.random.default_rng(0)
    vocab = loaded.config.get_text_config().vocab_size
    noise = rng.integers(0, vocab, length)
    loud = np.where(rng.random(length) < 0.5, rng.choice(loudest_tokens(loaded), length), noise)
    prompts = [
        Prompt(name="random tokens", ids=_ids(noise)),
        Prompt(name="one token", ids=_ids(np.full(length, noise[-1]))),
        Prompt(name="large activations", ids=_ids(loud)),
    ]
    text = _text_ids(loaded, length)
    return (*prompts, Prompt(name="many scripts", ids=text)) if text else tuple(prompts)


def loudest_tokens(loaded: LoadedModel) -> list[int]:
    """Tokens that, as the first one of a text, make the largest activations in any layer, the largest first."""
    candidates = _candidates(loaded)
    with torch.no_grad():
        output = loaded.model(input_ids=candidates[:, None], use_cache=False, output_hidden_states=True)
    peaks = torch.stack([hidden.abs().amax((1, 2)) for hidden in output.hidden_states]).amax(0)
    return [int(token) for token in candidates[peaks.argsort(descending=True, stable=True)][:_LOUDEST]]


def _candidates(loaded: LoadedModel) -> Tensor:
    """Special tokens, and those with the smallest and the largest embeddings."""
    vocab = loaded.config.get_text_config().vocab_size
    embeddings: Any = loaded.model.get_input_embeddings()
    order = embeddings.weight[:vocab].norm(dim=-1).argsort(stable=True)
    found = {*order[:_CANDIDATES].tolist(), *order[-_CANDIDATES:].tolist()}
    for name in _SPECIAL:
        ids = getattr(loaded.config.get_text_config(), name, None)
        found |= set(ids) if isinstance(ids, list | tuple) else {ids} - {None}
    if loaded.tokenizer is not None:
        found |= set(loaded.tokenizer.all_special_ids)
    return torch.tensor(sorted(token for token in found if 0 <= token < vocab))


def _text_ids(loaded: LoadedModel, length: int) -> tuple[int, ...]:
    """The text over and over, up to the length; empty where there is no tokenizer."""
    if loaded.tokenizer is None:
        return ()
    ids = loaded.tokenizer.encode(TEXT, add_special_tokens=False)
    return _ids(np.resize(ids, length)) if ids else ()


def _ids(array: np.ndarray) -> tuple[int, ...]:
    return tuple(int(token) for token in array)
