"""Sessions as files: what was said, and the pages that hold it.

A safetensors file, as large as the pages that are in use and the text of a chat. Its metadata has one entry,
"kvedge": a JSON record with a digest over itself and all tensors. The tensors are those of
kvedge.runtime.saved_pages.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from kvedge.runtime.saved_pages import Arrays, SavedPages
from kvedge.runtime.table import Held
from kvedge.targets import manifest as artifact
from kvedge.targets.errors import KvedgeError, require
from kvedge.targets.manifest import Manifest

SAVED_VERSION = 1
_ENTRY = "kvedge"


@dataclass(frozen=True, kw_only=True)
class SavedSession:
    """Pages, and the text around them as JSON (Session knows what)."""

    pages: SavedPages
    talk: dict[str, Any]


def write(path: Path, manifest: Manifest, saved: SavedSession) -> None:
    """Write a session file; another one of that name is replaced when the new one is whole.

    Raises:
        KvedgeError: it cannot be written.
    """
    pages = saved.pages
    body = {
        "version": SAVED_VERSION,
        "artifact": _facts(manifest),
        "fingerprint": artifact.fingerprint(manifest),
        "num_tokens": pages.num_tokens,
        "high": pages.high,
        "held": [[[part.start, part.stop] for part in (held.sinks, held.ring, held.packed)] for held in pages.held],
        "talk": saved.talk,
    }
    text = json.dumps(body | {"digest": _digest(body, pages.arrays)})
    path = path.resolve()  # a link stays one
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.touch()  # its errors are plainer than those of safetensors
        save_file(pages.arrays, partial, metadata={_ENTRY: text})
        os.replace(partial, path)
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise KvedgeError(f"session file {path}", expected="to write it", got=reason) from None
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def read(path: Path, manifest: Manifest) -> SavedSession:
    """Read and check a session file of an artifact.

    Raises:
        KvedgeError: not there, damaged, of a newer kvedge, or of another artifact; says what differs.
    """
    require(path.is_file(), f"session file {path}", expected="a file", got="none of that name")
    try:
        with safe_open(path, "numpy") as stored:
            body = json.loads((stored.metadata() or {})[_ENTRY])
            arrays = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - not a dict
        digest = body.pop("digest")
    except OSError as error:
        raise KvedgeError(f"session file {path}", expected="to read it", got=error.strerror or str(error)) from None
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError):
        raise _damaged(path, "a session file of kvedge") from None
    version = body.get("version")
    newer = isinstance(version, int) and version > SAVED_VERSION
    what = f"session file {path}"
    require(not newer, what, expected=f"format {SAVED_VERSION} or older", got=version, fix="update kvedge")
    if digest != _digest(body, arrays):
        raise _damaged(path, "one whose digest fits")
    _check_artifact(what, body, manifest)
    held = [Held(*(range(*part) for part in parts)) for parts in body["held"]]
    pages = SavedPages(num_tokens=body["num_tokens"], high=body["high"], held=held, arrays=arrays)
    return SavedSession(pages=pages, talk=body["talk"])


def _facts(manifest: Manifest) -> dict[str, str]:
    """What people know the artifact by; the fingerprint says the rest."""
    groups = manifest.cache.groups
    return {
        "model": manifest.model.name,
        "kv": manifest.kinds,
        "window": ", ".join(str(rules.window or "none") for rules in groups),
        "sinks": ", ".join(str(rules.sinks) for rules in groups),
        "recent": ", ".join(str(rules.recent) for rules in groups),
        "page": ", ".join(str(rules.page) for rules in groups),
        "layers": str(len(manifest.cache.layers)),
        "weights": manifest.model.weights,
    }


def _check_artifact(what: str, body: dict[str, Any], manifest: Manifest) -> None:
    """Name the first thing that differs."""
    fix = "load the artifact that it was saved with, or start a new session"
    for name, expected in _facts(manifest).items():
        got = body["artifact"].get(name)
        require(got == expected, f"{what}: {name}", expected=expected, got=got, fix=fix)
    same = body["fingerprint"] == artifact.fingerprint(manifest)
    require(
        same, f"{what}: artifact", expected="the one that is loaded", got="another export of the same model", fix=fix
    )


def _digest(body: dict[str, Any], arrays: Arrays) -> str:
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _damaged(path: Path, expected: str) -> KvedgeError:
    return KvedgeError(f"damaged: {path}", expected=expected, got="other bytes", fix="start a new session")
