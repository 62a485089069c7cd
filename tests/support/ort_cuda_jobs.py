"""A process that runs models on the true ONNX Runtime with stand-ins of its CUDA provider and of the driver.

    python ort_cuda_jobs.py PROVIDER < jobs.json > results.json

PROVIDER is the library of stand_in_provider.cc. A job is a model, the folder of its kernels, and runs: what the driver
is told, the tensors of the step, and whether pools have outputs of their own.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

OPTIONS = Path(os.environ["KVEDGE_STAND_IN"])
CALLS = Path(f"{OPTIONS}.calls")


def tell(words: list[str]) -> None:
    """Tell the driver how to behave; calls begin anew."""
    OPTIONS.write_text("".join(f"{word}\n" for word in words))
    CALLS.unlink(missing_ok=True)


def calls() -> list[dict[str, Any]]:
    """What it was asked since."""
    return [json.loads(line) for line in CALLS.read_text().splitlines()] if CALLS.exists() else []


def start(job: dict[str, Any], provider: str) -> ort.InferenceSession:
    """A session of the job's model."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if job["kernels"] is not None:
        options.add_session_config_entry("kvedge.kernels", job["kernels"])
    options.register_custom_ops_library(provider)
    return ort.InferenceSession(job["model"], options, providers=["CPUExecutionProvider"])


def run(session: ort.InferenceSession, one: dict[str, Any]) -> dict[str, Any]:
    """One step: addresses of its tensors, what the driver was asked, and the error, if any."""
    tell(one["words"])
    binding, values = session.io_binding(), {}
    for name, (shape, dtype) in one["inputs"].items():
        values[name] = ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, dtype))
        binding.bind_ortvalue_input(name, values[name])
    for name, (shape, dtype) in one["outputs"].items():
        pool = name.replace("_out", "")
        shares = pool in values and not one["apart"]
        values[name] = values[pool] if shares else ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, dtype))
        binding.bind_ortvalue_output(name, values[name])
    error = None
    try:
        session.run_with_iobinding(binding)
    except Exception as failure:  # its exceptions share no class of their own
        error = str(failure)
    return {"addresses": {n: value.data_ptr() for n, value in values.items()}, "calls": calls(), "error": error}


def result_of(job: dict[str, Any], provider: str) -> dict[str, Any]:
    """All of a job."""
    tell(job["words"])
    try:
        session = start(job, provider)
    except Exception as failure:
        return {"error": str(failure), "loading": calls()}
    loading = calls()
    runs = [run(session, one) for one in job["runs"]]
    tell([])
    del session
    gc.collect()
    return {"error": None, "loading": loading, "runs": runs, "closing": calls()}


if __name__ == "__main__":
    print(json.dumps([result_of(job, sys.argv[1]) for job in json.load(sys.stdin)]))
