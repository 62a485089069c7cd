"""A tiny random Llama with a tokenizer and a chat format, traced once and made into three artifacts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvedge.targets.kinds import Kind
from kvedge.targets.settings import CacheSettings, WeightType

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

os.environ.setdefault("TRITON_INTERPRET", "1")
"""Triton decides when it is first imported whether kernels run in its interpreter; here there is no GPU."""

VOCAB = 512
POSITIONS = 256
WINDOW = 48
RULES = {"sinks": 4, "recent": 16, "page": 16}
"""Small enough that packed pages are read from token 53 on."""

CHAT_TEMPLATE = (
    "{% for turn in messages %}[{{ turn.role }}] {{ turn.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """Folders of the tiny model.

    Args:
        hf: the Hugging Face model.
        fp, int3: artifacts with a window of 48 keys.
        whole: int3 without a window.
    """

    hf: Path
    fp: Path
    int3: Path
    whole: Path


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """The model and its artifacts. Nobody may change them: copy first."""
    from kvedge.export import export as exporter

    root = tmp_path_factory.mktemp("tiny")
    made = Tiny(hf=root / "hf", fp=root / "fp", int3=root / "int3", whole=root / "whole")
    _model().save_pretrained(made.hf)
    _tokenizer().save_pretrained(made.hf)
    with pytest.MonkeyPatch.context() as patch, _traced_once(patch):
        for folder, kind, window in (
            (made.fp, Kind.FP, WINDOW),
            (made.int3, Kind.INT3, WINDOW),
            (made.whole, Kind.INT3, None),
        ):
            job = exporter.ExportJob(
                source=str(made.hf),
                settings=CacheSettings(kind=kind, window=window, **RULES),
                weights=WeightType.FP32,
                output=folder,
                check=kind is Kind.INT3,
                trust_remote_code=False,
            )
            exporter.export_model(job, _silent)
    return made


@contextmanager
def _traced_once(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tracing takes ten seconds, and does not depend on the cache."""
    from kvedge.export import export as exporter

    traced: list[object] = []
    trace = exporter.trace

    def once(*args: object, **options: object) -> object:
        if not traced:
            traced.append(trace(*args, **options))  # type: ignore[arg-type]
        return traced[0]

    patch.setattr(exporter, "trace", once)
    yield


@contextmanager
def _silent(_: str) -> Iterator[None]:
    yield


def _model() -> LlamaForCausalLM:
    """Seeded; attention is made sharp, else an error of one position drowns in quantization noise."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config).eval()
    scales = {"q_proj": 6.0, "k_proj": 6.0, "v_proj": 4.0, "o_proj": 4.0}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight *= scales.get(name.split(".")[-2], 1.0)
    return model


def _tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE: every text has tokens, and a random model writes half characters."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>"}
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=list(special.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([Path(__file__).read_text(encoding="utf-8")], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=CHAT_TEMPLATE, **special)
