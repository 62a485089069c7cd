"""The process in which `kvedge bench` measures one artifact, so that memory is its own.

    python -m kvedge.runtime.bench_worker '{"folder": "./my-model-int3", "context": null, "threads": 2}'

It prints JSON, one object a line: what it loaded, then for each order on its standard input how many tokens are
done, and the result. An order is {"depth": 512, "gen": 32, "seed": 1}. What a user can mend is {"error": "..."}.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from kvedge.plugins.native import native
from kvedge.runtime.engine import Engine, Row
from kvedge.runtime.sequence import Sequence
from kvedge.runtime.show import MIN_DECODE_STEPS
from kvedge.targets.errors import KvedgeError

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_CLEAR_PEAK = "5"


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """An artifact in memory. Bytes of memory are resident ones of this process; times are seconds."""

    load_seconds: float
    warm_up_seconds: float
    resident_before: int
    kv_planned: int
    kv_allocated: int
    fp16_kv: int
    cpu_isa: str


@dataclass(frozen=True, kw_only=True)
class Run:
    """One measurement: `first_token_seconds` is the whole prompt's, `token_ids` are what was decoded.

    `decode_began` is a time.monotonic(), by which other processes find the decoding; None where it is not known.
    """

    first_token_seconds: float
    decode_seconds: float
    packed_pages: int
    resident_peak: int
    token_ids: list[int]
    decode_began: float | None = None


def main() -> None:
    """See the module."""
    facts = json.loads(sys.argv[1])
    try:
        engine, loaded = _load(facts["folder"], facts["context"], facts["threads"])
        say(asdict(loaded))
        for line in sys.stdin:
            order = json.loads(line)
            say(asdict(measure(engine, order["depth"], order["gen"], np.random.default_rng(order["seed"]))))
    except (KvedgeError, OSError) as error:
        say({"error": str(error)})
    except KeyboardInterrupt:
        sys.exit(130)  # the other process says so


def _load(folder: str, context: int | None, threads: int | None) -> tuple[Engine, Loaded]:
    before, began = resident("VmRSS"), time.perf_counter()
    engine = Engine.load(folder, context=context, threads=threads)
    loaded = time.perf_counter()
    room = engine.sequence().room
    depth = engine.plan.chunk if room is None else min(engine.plan.chunk, room - MIN_DECODE_STEPS)
    measure(engine, max(0, depth), MIN_DECODE_STEPS, np.random.default_rng(0))
    return engine, Loaded(
        load_seconds=loaded - began,
        warm_up_seconds=time.perf_counter() - loaded,
        resident_before=before,
        kv_planned=engine.planned_bytes,
        kv_allocated=engine.allocated_bytes,
        fp16_kv=engine.plan.fp16_bytes,
        cpu_isa=native().cpu_isa,
    )


def measure(engine: Engine, depth: int, gen: int, random: np.random.Generator) -> Run:
    """Read `depth` random tokens (one, at depth 0) into an empty sequence, then decode `gen` greedily."""
    sequence, vocab = engine.sequence(), engine.manifest.model.vocab_size
    prompt = random.integers(0, vocab, max(depth, 1)).tolist()
    clear_peak()
    try:
        began = time.perf_counter()
        token = _prefill(engine, sequence, prompt)
        first, decode_began = time.perf_counter(), time.monotonic()
        token_ids, pages = _decode(engine, sequence, token, gen)
        end = time.perf_counter()
    finally:
        sequence.clear()
    return Run(
        first_token_seconds=first - began,
        decode_seconds=end - first,
        packed_pages=pages,
        resident_peak=resident("VmHWM"),
        token_ids=token_ids,
        decode_began=decode_began,
    )


def _prefill(engine: Engine, sequence: Sequence, ids: list[int]) -> int:
    """The likeliest token after a prompt."""
    token = 0
    for first in range(0, len(ids), engine.plan.chunk):
        part = ids[first : first + engine.plan.chunk]
        token = int(engine.step([Row(sequence, part)], [len(part) - 1]).logits[0, 0].argmax())
        say({"done": len(part)})
    return token


def _decode(engine: Engine, sequence: Sequence, token: int, gen: int) -> tuple[list[int], int]:
    """Feed one token a step, each the likeliest after the last; the tokens, and packed pages read."""
    token_ids, pages = [token], 0
    for _ in range(gen):
        result = engine.step([Row(sequence, [token_ids[-1]])], [0])
        token_ids.append(int(result.logits[0, 0].argmax()))
        pages += result.packed_pages_read
    say({"done": gen})
    return token_ids, pages


def say(record: dict[str, object]) -> None:
    """A record for the other process."""
    print(json.dumps(record), flush=True)


def clear_peak() -> None:
    """Let the highest resident size begin anew, where the system can."""
    if _CLEAR.exists():
        _CLEAR.write_text(_CLEAR_PEAK)


def resident(field: str) -> int:
    """Bytes of a line of Linux's process status, `VmRSS:  1234 kB`; elsewhere the highest so far."""
    if _STATUS.is_file():
        lines = _STATUS.read_text(encoding="utf-8").splitlines()
        found = next((line for line in lines if line.startswith(f"{field}:")), None)
        if found is not None:
            return int(found.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
