"""Model types that were shown to trace: the graph of a tiny model gave the logits of the original to 1e-5.

A type that is missing here is still tried: the table only serves messages and the documentation.
"""

from __future__ import annotations

from difflib import get_close_matches

VERIFIED: tuple[str, ...] = (
    *("apertus", "arcee", "bitnet", "cohere", "cohere2", "cwm", "ernie4_5", "exaone4"),
    *("gemma", "gemma2", "gemma3_text", "gemma4_text", "glm", "glm4", "gpt_neox", "granite"),
    *("helium", "jais2", "llama", "ministral", "mistral", "nemotron", "olmo", "olmo2", "olmo3"),
    *("persimmon", "phi", "phi3", "qwen2", "qwen3", "seed_oss", "smollm3", "stablelm"),
    *("starcoder2", "vaultgemma"),
)
"""`config.model_type` of each."""

NAMES = ", ".join(VERIFIED)
NO_EXPORT_YET = f"no export for it yet; families that work: {NAMES}"
"""What to do about a model that cannot be expressed."""


def nearest(model_type: str) -> str:
    """Return the verified types that look most like `model_type`, else all of them, as text."""
    close = get_close_matches(model_type.lower(), VERIFIED, n=4, cutoff=0.5)
    return ", ".join(close) if close else NAMES
