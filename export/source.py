"""Load a model for export: a local folder, a hub id or a GGUF file.

Local paths never touch the network. For hub ids the usual settings of huggingface_hub count (HF_HOME,
HF_HUB_OFFLINE, ...).
"""

from __future__ import annotations

import importlib.util
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
from transformers.utils import logging as transformers_logging

from kvedge.export.families import nearest
from kvedge.targets.errors import KvedgeError

_FEW_TOKENS = 64  # a real vocabulary holds 256 bytes at least


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory, ready to trace.

    Args:
        model: the causal language model, float32, in eval mode, eager attention.
        tokenizer: its fast tokenizer, None where the source has none.
        name: short name for people.
        config: the model's configuration.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast | None
    name: str
    config: PretrainedConfig


@dataclass(frozen=True)
class _Source:
    """What `from_pretrained` is called with."""

    location: str
    name: str
    local: bool
    gguf_file: str | None
    trust_remote_code: bool

    def arguments(self) -> dict[str, Any]:
        arguments: dict[str, Any] = {"local_files_only": self.local}
        if self.gguf_file is not None:
            arguments["gguf_file"] = self.gguf_file
        else:
            arguments["trust_remote_code"] = self.trust_remote_code
        return arguments


def load_model(source: str, *, trust_remote_code: bool) -> LoadedModel:
    """Load `source` with float32 weights.

    Args:
        source: a folder with config.json and weights, a hub id such as `org/name`, or a `.gguf` file.
        trust_remote_code: run modelling code that comes with the model.

    Raises:
        KvedgeError: nothing there, not a model, an unknown architecture, or not to be had offline.
    """
    found = _find(source, trust_remote_code)
    with _quiet():
        config = _load_config(found)
        model = _load_weights(found, config)
        tokenizer = _load_tokenizer(found)
    model.train(False)
    return LoadedModel(model=model, tokenizer=tokenizer, name=found.name, config=model.config)


def _find(source: str, trust_remote_code: bool) -> _Source:
    path = Path(source).expanduser()
    if path.is_dir():
        return _find_folder(path, trust_remote_code)
    if path.is_file():
        return _find_file(path, trust_remote_code)
    if _looks_like_path(source):
        raise KvedgeError(
            f"no model at {source}",
            expected="a folder with config.json, a .gguf file, or a hub id such as org/name",
            fix="check the path",
        )
    return _Source(source, source, _is_cached(source), None, trust_remote_code)


def _is_cached(hub_id: str) -> bool:
    """Whether the hub's cache on this machine holds the model: then the network is left alone."""
    try:
        return isinstance(try_to_load_from_cache(hub_id, "config.json"), str)
    except ValueError:  # not a hub id at all
        return False


def _looks_like_path(source: str) -> bool:
    """Whether `source` can only be a path: hub ids are `name` or `org/name`."""
    return source.startswith((".", "/", "~")) or source.count("/") > 1 or "\\" in source or source.endswith(".gguf")


def _find_folder(path: Path, trust_remote_code: bool) -> _Source:
    if not (path / "config.json").is_file():
        ggufs = sorted(file.name for file in path.glob("*.gguf"))
        hint = f"name the file itself: {path / ggufs[0]}" if ggufs else "give the folder that holds the model"
        raise KvedgeError(f"{path} is not a model folder", expected="a config.json in it", got="none", fix=hint)
    return _Source(str(path), path.resolve().name, True, None, trust_remote_code)


def _find_file(path: Path, trust_remote_code: bool) -> _Source:
    if path.suffix.lower() != ".gguf":
        raise KvedgeError(f"cannot read {path}", expected="a model folder or a .gguf file", got=f"a {path.suffix} file")
    if importlib.util.find_spec("gguf") is None:
        raise KvedgeError(f"cannot read {path}", expected="the gguf package", got="none", fix="pip install gguf")
    return _Source(str(path.absolute().parent), path.stem, True, path.name, trust_remote_code)


def _load_config(source: _Source) -> PretrainedConfig:
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(source.location, **source.arguments())
    except Exception as error:  # loaders raise whatever their file formats do
        raise _explain(source, error) from error
    if getattr(config, "quantization_config", None) is not None and source.gguf_file is None:
        raise KvedgeError(
            f"{source.name} holds weights that are quantized already",
            expected="a checkpoint in float32, float16 or bfloat16",
            fix="export the original checkpoint; kvedge quantizes the weights itself",
        )
    return config


def _load_weights(source: _Source, config: PretrainedConfig) -> PreTrainedModel:
    options: dict[str, Any] = {
        "dtype": torch.float32,
        "attn_implementation": "eager",
        "output_loading_info": True,
    }
    automatic: Any = AutoModelForCausalLM
    try:
        if source.gguf_file is None:
            loaded = automatic.from_pretrained(source.location, **options, **source.arguments())
        else:
            model_class, weights = _read_gguf(source, config)
            loaded = model_class.from_pretrained(None, config=config, state_dict=weights, **options)
    except Exception as error:  # loaders raise whatever their file formats do
        raise _explain(source, error, config.model_type) from error
    model: PreTrainedModel = loaded[0]
    missing = sorted(loaded[1]["missing_keys"])
    if missing:
        raise KvedgeError(
            f"{source.name} lacks weights that a {config.model_type} model needs",
            got=f"{len(missing)} missing, such as {', '.join(missing[:3])}",
            fix="get the whole checkpoint again",
        )
    return model


def _read_gguf(source: _Source, config: PretrainedConfig) -> tuple[Any, dict[str, torch.Tensor]]:
    """Return the model's class and the dequantized weights of a GGUF file.

    transformers' own way asks for the accelerate package, which this needs for nothing.
    """
    automatic: Any = AutoModelForCausalLM
    read: Any = load_gguf_checkpoint
    with torch.device("meta"):
        skeleton = automatic.from_config(config)
    path = str(Path(source.location) / str(source.gguf_file))
    names = _WeightNames(skeleton)
    checkpoint = read(path, return_tensors=True, model_to_load=names, torch_dtype=torch.float32)
    return type(skeleton), checkpoint["tensors"]


class _WeightNames:
    """What the GGUF loader asks a model for, without submodules: it would map all names for each of them."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.config = model.config
        self._model = model

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self._model.state_dict()

    def named_children(self) -> Iterator[tuple[str, torch.nn.Module]]:
        return iter(())


def _load_tokenizer(source: _Source) -> PreTrainedTokenizerFast | None:
    # For a GGUF file the automatic class would read the whole file again, only to find its own name.
    loader: Any = AutoTokenizer if source.gguf_file is None else PreTrainedTokenizerFast
    try:
        tokenizer = loader.from_pretrained(source.location, **source.arguments())
    except Exception as error:
        if source.gguf_file is None and (Path(source.location) / "tokenizer.json").is_file():
            got = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            raise KvedgeError(f"the tokenizer of {source.name}", expected="one that loads", got=got) from error
        return None  # a model without a tokenizer is still a model
    # Where the files are missing, transformers makes up a tokenizer of a few special tokens.
    usable = getattr(tokenizer, "is_fast", False) and len(tokenizer) > _FEW_TOKENS
    return tokenizer if usable else None


def _explain(source: _Source, error: Exception, model_type: str | None = None) -> KvedgeError:
    """Turn what transformers says into one clear line."""
    text = " ".join(str(error).split())
    if "trust_remote_code" in text:
        return KvedgeError(
            f"{source.name} brings modelling code of its own",
            fix="read that code, then allow it with --trust-remote-code",
        )
    unknown = ("does not recognize this architecture", "Unrecognized", "not supported yet", "not supported")
    if isinstance(error, (ValueError, KeyError)) and any(words in text for words in unknown):
        named = model_type or _quoted(text)
        return KvedgeError(
            f"unknown architecture {named} in {source.name}",
            expected=f"a causal language model that transformers knows; nearest that work: {nearest(named)}",
            got=text[:200],
            fix="update transformers if the model is new",
        )
    if isinstance(error, OSError) and not source.local:
        return KvedgeError(
            f"cannot get {source.name} from the hub or its cache",
            got=text[:200],
            fix="check the name and the network (HF_HUB_OFFLINE, HF_HOME), or give a local folder",
        )
    is_damage = source.gguf_file is not None and not isinstance(error, ImportError | MemoryError)
    fix = "get the file again, in case it is not whole" if is_damage else None
    return KvedgeError(f"cannot load {source.name}", got=f"{type(error).__name__}: {text[:300]}", fix=fix)


def _quoted(text: str) -> str:
    """Return the first word in backquotes or quotes: transformers puts the model type there."""
    for mark in ("`", "'", '"'):
        if text.count(mark) >= 2:
            return text.split(mark)[1]
    return "of this model"


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence progress bars and advice that is about training or generation."""
    hf_logging: Any = transformers_logging
    level = hf_logging.get_verbosity()
    bars = hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        # The GGUF loader draws a progress bar that no setting turns off.
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        hf_logging.set_verbosity(level)
        if bars:
            hf_logging.enable_progress_bar()
