"""The process in which `kvedge bench` measures another engine; it speaks as bench_worker does.

python -m kvedge.runtime.peer_worker '{"peer": "ort-genai", "model": "./genai-int4", "threads": 2}'
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

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
        say({"ready": facts["peer"]})
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
    first = time.perf_counter()
    decode()
    end = time.perf_counter()
    return _result(first - began, end - first, resident("VmHWM"))


def _result(first_token: float, decode: float, peak: int) -> Run:
    return Run(first_token_seconds=first_token, decode_seconds=decode, packed_pages=0, resident_peak=peak, token_ids=[])


def _llama_cpp(model: str, threads: int) -> Measure:
    def seconds(*options: object) -> float:
        command = [str(llama_bench()), "-m", model, "-t", str(threads), "-fa", "1", "-r", "1", "-o", "json"]
        done = subprocess.run([*command, *map(str, options)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "llama-bench failed")
        (found,) = json.loads(done.stdout)
        return float(found["avg_ns"]) / 1e9

    def measure(depth: int, gen: int, _: np.random.Generator) -> Run:
        first = seconds("-p", max(depth, 1), "-n", 0)
        decode = seconds("-p", 0, "-n", gen, "-d", depth)
        return _result(first, decode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)

    return measure


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
