"""The process in which `kvedge bench` measures another engine; it speaks as bench_worker does.

python -m kvedge.runtime.peer_worker '{"peer": "ort-genai", "model": "./genai-int4", "threads": 2}'
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, TextIO

import numpy as np

from kvedge.runtime.bench_worker import Run, clear_peak, resident, say
from kvedge.runtime.peers import llama_bench

Measure = Callable[[int, int, np.random.Generator], Run]
"""Reads `depth` random tokens, then decodes `gen`."""


def main() -> None:
    """See the module."""
    facts = json.loads(sys.argv[1])
    try:
        measure = _ENGINES[facts["peer"]](facts["model"], facts["threads"])
        measure(16, 4, np.random.default_rng(0))
        say({"version": _version_of(facts["peer"])})
        for line in sys.stdin:
            order = json.loads(line)
            run = measure(order["depth"], order["gen"], np.random.default_rng(order["seed"]))
            say({"done": max(order["depth"], 1) + order["gen"]})
            say(vars(run))
    except KeyboardInterrupt:
        sys.exit(130)  # the other process says so
    except Exception as error:  # whatever the other engine raises
        say({"error": f"{facts['peer']}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"})


def _run(prefill: Callable[[], None], decode: Callable[[], None]) -> Run:
    clear_peak()
    began = time.perf_counter()
    prefill()
    first, decode_began = time.perf_counter(), time.monotonic()
    decode()
    end = time.perf_counter()
    return _result(first - began, end - first, resident("VmHWM"), decode_began)


def _result(first_token: float, decode: float, peak: int, decode_began: float | None = None) -> Run:
    return Run(
        first_token_seconds=first_token,
        decode_seconds=decode,
        packed_pages=0,
        resident_peak=peak,
        token_ids=[],
        decode_began=decode_began,
    )


def _version_of(peer: str) -> str:
    """llama.cpp's own benchmark has none that it says without a model."""
    packages = {"ort-genai": ("onnxruntime-genai",), "transformers": ("transformers", "torch")}.get(peer, ())
    return ", ".join(f"{name} {version(name)}" for name in packages)


def _llama_cpp(model: str, threads: int) -> Measure:
    def run(*options: object) -> tuple[float, int]:
        """Seconds, and the highest resident bytes of this process alone."""
        command = [str(llama_bench()), "-m", model, "-t", str(threads), "-fa", "1", "-r", "1", "-o", "json"]
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            child = subprocess.Popen([*command, *map(str, options)], stdout=out, stderr=err)
            try:
                _, status, usage = os.wait4(child.pid, 0)
            except BaseException:
                child.kill()
                raise
            child.returncode = os.waitstatus_to_exitcode(status)
            said, complaint = (_content(file) for file in (out, err))
        if child.returncode != 0:
            raise RuntimeError(complaint.splitlines()[-1] if complaint else "llama-bench failed")
        (found,) = json.loads(said)
        return float(found["avg_ns"]) / 1e9, usage.ru_maxrss * 1024

    def measure(depth: int, gen: int, _: np.random.Generator) -> Run:
        first, prefill_peak = run("-p", max(depth, 1), "-n", 0)
        decode, decode_peak = run("-p", 0, "-n", gen, "-d", depth)
        return _result(first, decode, max(prefill_peak, decode_peak))

    return measure


def _content(file: TextIO) -> str:
    file.seek(0)
    return file.read().strip()


def _ort_genai(model: str, threads: int) -> Measure:
    import onnxruntime_genai as genai

    config = genai.Config(model)
    config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}))
    loaded = genai.Model(config)
    with open(os.path.join(model, "genai_config.json"), encoding="utf-8") as file:
        vocab = json.load(file)["model"]["vocab_size"]

    def measure(depth: int, gen: int, random: np.random.Generator) -> Run:
        ids = random.integers(0, vocab, max(depth, 1))
        options = genai.GeneratorParams(loaded)
        options.set_search_options(max_length=len(ids) + gen + 1, min_length=len(ids) + gen + 1, do_sample=False)
        generator = genai.Generator(loaded, options)

        def prefill() -> None:
            generator.append_tokens(ids.astype(np.int32))
            generator.generate_next_token()

        def decode() -> None:
            for _ in range(gen):
                generator.generate_next_token()

        return _run(prefill, decode)

    return measure


def _transformers(model: str, threads: int) -> Measure:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    automatic: Any = AutoModelForCausalLM
    loaded = automatic.from_pretrained(model, dtype=torch.bfloat16).eval()

    def measure(depth: int, gen: int, random: np.random.Generator) -> Run:
        ids = torch.from_numpy(random.integers(0, loaded.config.vocab_size, (1, max(depth, 1))))
        state: dict[str, Any] = {}

        def step(new: Any) -> None:
            with torch.inference_mode():
                out = loaded(new, past_key_values=state.get("cache"), use_cache=True, logits_to_keep=1)
            state["cache"], state["token"] = out.past_key_values, out.logits[:, -1].argmax(-1, keepdim=True)

        def decode() -> None:
            for _ in range(gen):
                step(state["token"])

        return _run(lambda: step(ids), decode)

    return measure


_ENGINES: dict[str, Callable[[str, int], Measure]] = {
    "llama.cpp": _llama_cpp,
    "ort-genai": _ort_genai,
    "transformers": _transformers,
}


if __name__ == "__main__":
    main()
