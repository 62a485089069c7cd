"""What `kvedge plan MODEL` is about: an artifact, a model folder, a .gguf file, or a cached hub model."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

from kvedge.targets import manifest as artifact
from kvedge.targets.errors import KvedgeError
from kvedge.targets.manifest import Manifest
from kvedge.targets.model_config import Config, ModelConfig, read_model_config
from kvedge.targets.settings import WeightType
from kvedge.targets.weight_sizes import WeightSizes

CONFIG = "config.json"
_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_MAX_HEADER = 100_000_000  # bytes; the format's own limit

# GGUF metadata behind "ARCHITECTURE." and what config.json calls it. Windows count where export reads them.
_GGUF_KEYS = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.kv_lora_rank": "kv_lora_rank",
    "shortconv.l_cache": "conv_L_cache",
    "ssm.state_size": "ssm_state_size",
    "expert_count": "num_experts",
    "vocab_size": "vocab_size",
}
_GGUF_TYPES = {"gemma3": "gemma3_text"}
_GGUF_WINDOWED = ("gemma2", "gemma3")


@dataclass(frozen=True, kw_only=True)
class Source:
    """A model that has no cache yet.

    Args:
        config: what its configuration says.
        parameters: number of weights, None if nobody knows; basis: what the number comes from.
    """

    config: ModelConfig
    parameters: int | None
    basis: str

    def weights(self, stored_as: WeightType) -> WeightSizes | None:
        """Size of the weights once exported."""
        if self.parameters is None:
            return None
        looked_up = self.config.looked_up
        return WeightSizes(
            stored_as=stored_as,
            stored=round(self.parameters * stored_as.stored_bits / 8),
            step=None if looked_up is None else round((self.parameters - looked_up) * stored_as.stored_bits / 8),
            basis=self.basis,
        )


def find_model(model: str) -> Manifest | Source:
    """What `model` names. Never touches the network.

    Raises:
        KvedgeError: nothing there, or nothing that can be planned.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return artifact.read(path) if (path / artifact.MANIFEST).is_file() else _read_folder(path, path.resolve().name)
    if path.is_file():
        return _read_gguf(path)
    if _HUB_ID.fullmatch(model) and not model.startswith(".") and not model.endswith(".gguf"):
        return _read_folder(_cached_snapshot(model), model)
    raise KvedgeError(
        f"no model at {model}",
        expected="an artifact, a folder with config.json, a .gguf file, or a hub id such as org/name",
        fix="check the path",
    )


def _read_folder(folder: Path, name: str) -> Source:
    path = folder / CONFIG
    if not path.is_file():
        raise KvedgeError(
            f"{folder} is no model folder",
            expected=f"{CONFIG}, or an artifact's {artifact.MANIFEST}, in it",
            got="neither",
            fix="give the folder that holds the model",
        )
    config = _read_json(path)
    model = read_model_config(config, name)
    counted = None if "quantization_config" in config else _count_safetensors(folder)
    if counted is not None:
        return Source(config=model, parameters=counted, basis="safetensors headers")
    return Source(config=model, parameters=model.parameters, basis="an estimate from the configuration")


def _read_json(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise KvedgeError(f"{path}", expected="JSON", got=str(error), fix="get the file again") from None
    if not isinstance(content, dict):
        raise KvedgeError(f"{path}", expected="a JSON object", got=type(content).__name__, fix="get the file again")
    return content


def _count_safetensors(folder: Path) -> int | None:
    """Weights in the folder's safetensors files, from their headers; None where they are not all there."""
    files = [folder / _SINGLE]
    if (folder / _INDEX).is_file():
        shards = _read_json(folder / _INDEX).get("weight_map")
        files = [folder / str(name) for name in sorted(set(shards.values()))] if isinstance(shards, dict) else []
    if not files or not all(path.is_file() for path in files):
        return None
    return sum(elements for path in files for elements in _tensor_elements(path))


def _tensor_elements(path: Path) -> Iterator[int]:
    """Elements of each tensor of a safetensors file: 8 bytes of length, then a JSON header."""
    damaged = KvedgeError(f"{path}", expected="a safetensors file", got="another header", fix="get the file again")
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > min(_MAX_HEADER, path.stat().st_size):
            raise damaged
        try:
            header = json.loads(stream.read(length))
            yield from [prod(info["shape"]) for name, info in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise damaged from None


def _cached_snapshot(hub_id: str) -> Path:
    """Newest snapshot of a hub model that is on this machine already."""
    cache = _hub_cache()
    model = cache / f"models--{hub_id.replace('/', '--')}"
    main = model / "refs" / "main"
    if main.is_file():
        snapshot = model / "snapshots" / main.read_text(encoding="utf-8").strip()
        if (snapshot / CONFIG).is_file():
            return snapshot
    found = sorted(model.glob(f"snapshots/*/{CONFIG}"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise KvedgeError(
            f"no folder or file {hub_id}, and no hub model of that name in {cache}",
            expected=f"its {CONFIG} on this machine: plan never downloads",
            fix=f"get it with `hf download {hub_id} {CONFIG}`, or give a folder",
        )
    return found[-1].parent


def _hub_cache() -> Path:
    """Where huggingface_hub keeps models."""
    if explicit := os.environ.get("HF_HUB_CACHE"):
        return Path(explicit).expanduser()
    base = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "huggingface"
    return Path(os.environ.get("HF_HOME", base)).expanduser() / "hub"


def _read_gguf(path: Path) -> Source:
    if path.suffix.lower() != ".gguf":
        raise KvedgeError(f"cannot plan {path}", expected="a folder or a .gguf file", got=f"a {path.suffix} file")
    if importlib.util.find_spec("gguf") is None:
        raise KvedgeError(
            f"cannot read {path}", expected="the gguf package", got="none", fix="pip install 'kvedge[demo]'"
        )
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
        fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("tokenizer.")}
        tensors = {t.name: int(t.n_elements) for t in reader.tensors if not t.name.startswith("rope_")}
    except (ValueError, IndexError, KeyError, OSError) as error:
        got = str(error) or type(error).__name__
        raise KvedgeError(f"cannot read {path}", expected="a whole GGUF file", got=got, fix="get it again") from error
    model = read_model_config(_gguf_config(fields, tensors), path.stem)
    return Source(config=model, parameters=sum(tensors.values()), basis="the tensor list of the .gguf file")


def _gguf_config(fields: Config, tensors: dict[str, int]) -> dict[str, object]:
    """Metadata of a GGUF file under the names of config.json."""
    architecture = str(fields.get("general.architecture", "unknown"))
    found = {ours: fields.get(f"{architecture}.{theirs}") for theirs, ours in _GGUF_KEYS.items()}
    config = {key: value for key, value in found.items() if value is not None}
    config["model_type"] = _GGUF_TYPES.get(architecture, architecture)
    config["tie_word_embeddings"] = "output.weight" not in tensors
    embedding, hidden = tensors.get("token_embd.weight", 0), config.get("hidden_size")
    if embedding and isinstance(hidden, int) and hidden > 0:
        config.setdefault("vocab_size", embedding // hidden)
    if architecture == "llama" and "head_dim" not in config:
        config["head_dim"] = fields.get("llama.rope.dimension_count")
    if architecture in _GGUF_WINDOWED:
        config["sliding_window"] = fields.get(f"{architecture}.attention.sliding_window")
    return config
