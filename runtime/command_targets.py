"""`kvedge targets`."""

from __future__ import annotations

import json

import click

from kvedge.runtime.target_text import bandwidth_text, memory_text, target_record
from kvedge.targets.devices import TARGETS, Target
from kvedge.targets.kinds import FLOATS_FROM_SM, Kind
from kvedge.targets.text_table import text_table

_EXAMPLES = """
\b
Examples:
  kvedge targets                                          what --target can be
  kvedge plan ./my-model --target jetson-orin-nano        does it fit, and how fast can it be
"""

_HEADER = ("target", "engine", "chips", "memory", "bandwidth", "kv", "pages", "weights", "checked")


@click.command(epilog=_EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print the records as JSON.")
def targets(as_json: bool) -> None:
    """Devices that `kvedge plan`, `export` and `build` know as --target.

    Bandwidths are the data sheets' peaks; a power mode may give less. "-" differs from machine to machine: `plan`
    takes it as --memory and --bandwidth. All take every kind of KV cache but fp8, which needs SM89 or newer: see
    the column "kv". The last column says how far each was tried: run, or an engine built on no GPU, or only compiled.
    """
    if as_json:
        print(json.dumps([target_record(target) for target in TARGETS]))
        return
    print(text_table(_HEADER, [_row(target) for target in TARGETS]))
    print()
    print("\n".join(f"{target.name:22}{target.device} ({'; '.join(target.software)})" for target in TARGETS))


def _kinds(target: Target) -> str:
    """Which kinds of cache its chips read."""
    if Kind.FP8 not in target.kinds:
        return f"no {Kind.FP8.value}"
    return "all" if all(map(Kind.FP8.is_read_by, target.sms)) else f"{Kind.FP8.value} from SM{FLOATS_FROM_SM}"


def _row(target: Target) -> tuple[str, ...]:
    pages = "multiples of 8" if target.pages is None else " ".join(map(str, target.pages))
    return (
        target.name,
        target.engine.label,
        " ".join(map(str, target.sms)) or "-",
        memory_text(target),
        bandwidth_text(target.bandwidth),
        _kinds(target),
        pages,
        " ".join(weights.value for weights in target.weights),
        target.engine.checked,
    )
