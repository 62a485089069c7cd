"""Comparisons with the original as commands show them."""

from __future__ import annotations

from dataclasses import asdict

from kvedge.export.verify import COLLAPSE_KL, Report
from kvedge.targets.text_table import text_table

_HEADER = (
    "prompt",
    "tokens",
    "unquantized",
    "before packing",
    "packed KL",
    "top-1",
    "packed pages",
    "weights KL",
    "top-1",
)


def report_record(report: Report) -> dict[str, object]:
    """For JSON: the worst of all prompts, then each of them."""
    return {
        "exact_error": report.exact_error,
        "exact_tolerance": report.exact_tolerance,
        "hot_error": report.hot_error,
        "hot_tolerance": report.hot_tolerance,
        "kl": report.kl,
        "kl_tolerance": COLLAPSE_KL,
        "top1": report.top1,
        "weights_kl": report.weights_kl,
        "weights_top1": report.weights_top1,
        "weights_kept": report.weights_kept,
        "packed_pages_read": report.packed_pages_read,
        "forgets": report.forgets,
        "prompts": [asdict(prompt) for prompt in report.prompts],
        "problems": list(report.problems),
    }


def report_table(report: Report) -> str:
    """A row for each prompt, with the tolerances below."""
    rows = [
        (
            prompt.name,
            str(prompt.tokens),
            f"{prompt.exact_error:.2g}",
            f"{prompt.hot_error:.2g}",
            f"{prompt.kl:.4f}",
            f"{prompt.top1:.3f}",
            str(prompt.packed_pages_read),
            f"{prompt.weights_kl:.4f}",
            f"{prompt.weights_top1:.3f}",
        )
        for prompt in report.prompts
    ]
    most = (
        "at most",
        "",
        f"{report.exact_tolerance:g}",
        f"{report.hot_tolerance:g}",
        f"{COLLAPSE_KL:g}",
        "",
        "",
        "",
        "",
    )
    return text_table(_HEADER, [*rows, most])
