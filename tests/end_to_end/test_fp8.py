"""What fp8 costs: it takes int8's bytes and loses more of SmolLM2's predictions, and more still in other forms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from kvedge.export.source import LoadedModel, load_model
from kvedge.plugins.reference.quantize import decode, encode
from kvedge.plugins.reference.rotation import rotate, unrotate
from kvedge.targets.codebook import Code
from kvedge.targets.kinds import ValueScale
from kvedge.targets.spec import DEFAULT_PAGE, DEFAULT_RECENT, DEFAULT_SINKS

Floats = NDArray[np.float32]
Store = Callable[[Floats, bool], Floats]
"""What keys (True) or values [B, H, N, D] are once they were stored."""

TOKENS, FIRST = 1024, 256  # before FIRST nothing is read from packed pages
E4M3_LAST = np.float32(448)


def e4m3(x: Floats) -> Floats:
    return np.clip(x, -E4M3_LAST, E4M3_LAST).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)


def coded(x: Floats, is_key: bool, code: Code) -> Floats:
    codes, scales = encode(x, code, ValueScale.UNBIASED if is_key else ValueScale.LEAST_SQUARES)
    return decode(codes, code) * scales.astype(np.float32)[..., None]


def rotated(x: Floats, is_key: bool, code: Code) -> Floats:
    return unrotate(coded(rotate(x), is_key, code))


def centred(x: Floats, is_key: bool, store: Store) -> Floats:
    """Keys without the mean of their page, which is stored beside them."""
    if not is_key:
        return store(x, is_key)
    pages = x.reshape(*x.shape[:2], -1, DEFAULT_PAGE, x.shape[-1])
    mean = pages.mean(-2, keepdims=True).astype(np.float16).astype(np.float32)
    return (store(pages - mean, is_key) + mean).reshape(x.shape)


def one_scale(x: Floats, _: bool) -> Floats:
    """As engines with calibrated fp8 caches, the calibration being of the text itself."""
    scale = np.abs(x).max() / E4M3_LAST
    return e4m3(x / scale) * scale


FLOATS = partial(coded, code=Code.E4M3)
INT8, FP8 = (partial(centred, store=partial(rotated, code=code)) for code in (Code.UNIFORM, Code.E4M3))
OTHERS: dict[str, Store] = {
    "page mean, a scale a vector": partial(centred, store=FLOATS),
    "a scale a vector": FLOATS,
    "a scale a layer": one_scale,
}


@pytest.fixture(scope="module")
def loaded(smollm2_gguf: Path) -> LoadedModel:
    return load_model(str(smollm2_gguf), trust_remote_code=False)


@contextmanager
def stored(model: Any, store: Store | None) -> Iterator[None]:
    """Attention that sees old tokens as they were stored."""
    name, before = "stored", model.config._attn_implementation
    ALL_ATTENTION_FUNCTIONS.register(name, partial(attend, store=store))
    model.config._attn_implementation = name
    try:
        yield
    finally:
        model.config._attn_implementation = before


def attend(_: object, q: Any, k: Any, v: Any, *__: object, scaling: float, store: Store | None, **___: object) -> Any:
    new, old = torch.arange(q.shape[2])[:, None], torch.arange(q.shape[2])[None]
    packed = (new // DEFAULT_PAGE * DEFAULT_PAGE - old > DEFAULT_RECENT) & (old >= DEFAULT_SINKS)
    group = q.shape[1] // k.shape[1]
    exact = [each.repeat_interleave(group, 1) for each in (k, v)]
    seen = exact
    if store is not None:
        read = (torch.from_numpy(store(each.numpy(), is_key)) for each, is_key in ((k, True), (v, False)))
        seen = [each.repeat_interleave(group, 1) for each in read]
    scores = [q @ keys.transpose(-1, -2) * scaling for keys in (exact[0], seen[0])]
    weights = torch.where(packed, scores[1], scores[0]).masked_fill(old > new, -math.inf).softmax(-1)
    return ((weights * ~packed) @ exact[1] + (weights * packed) @ seen[1]).transpose(1, 2).contiguous(), None


def log_probabilities(loaded: LoadedModel, text: str, store: Store | None) -> Any:
    ids = loaded.tokenizer(text, return_tensors="pt").input_ids[:, :TOKENS]
    with torch.no_grad(), stored(loaded.model, store):
        return loaded.model(ids).logits[0, FIRST:].double().log_softmax(-1)


@pytest.mark.slow
def test_int8_loses_less_in_the_same_bytes(loaded: LoadedModel, prose: Path) -> None:
    text = prose.read_text()[: 8 * TOKENS]
    want = log_probabilities(loaded, text, None)
    kl = {
        name: float((want.exp() * (want - log_probabilities(loaded, text, store))).sum(-1).mean())
        for name, store in ({"int8": INT8, "fp8": FP8} | OTHERS).items()
    }
    print(", ".join(f"{name}: {value:.2g}" for name, value in kl.items()))
    assert 0 < 10 * kl["int8"] < kl["fp8"] < 1e-4
    assert all(kl[name] > kl["fp8"] for name in OTHERS)
