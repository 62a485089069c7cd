"""`kvedge run`."""

from __future__ import annotations

import json
import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvedge.runtime import show
from kvedge.runtime.answer_options import AnswerOptions, answer_options
from kvedge.runtime.limits import step_limits
from kvedge.runtime.session_option import check_session_file, keeping, open_session, session_option
from kvedge.targets import manifest as artifact
from kvedge.targets.errors import KvedgeError, require
from kvedge.targets.profiles import limits_plan
from kvedge.targets.units import size

if TYPE_CHECKING:
    from kvedge.runtime.answer import Answer
    from kvedge.runtime.engine import Engine

_EXAMPLES = """
\b
Examples:
  kvedge run ./my-model-int3 "Why is the sky blue?"
  kvedge run ./my-model-int3 - < question.txt
  git diff | kvedge run ./my-model-int3 --max-tokens 200 --temperature 0.7 --min-p 0.05 --seed 1
  kvedge run ./my-model-int3 "List three fables." --stop "4." --repeat-penalty 1.1
  kvedge run ./my-model-int3 "Once upon a time" --raw --json
  kvedge run ./my-model-int3 --session talk.kv - < manual.txt
  kvedge run ./my-model-int3 --session talk.kv "And on page 3?"
"""


@click.command(epilog=_EXAMPLES)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("prompt", required=False)
@click.option("--raw", is_flag=True, help="Continue the text as it is, without the model's chat format.")
@answer_options
@session_option
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads.  [default: all cores]")
@click.option("--ctx", type=int, help="Tokens of a cache without a window.  [default: the model's positions]")
@click.option("--stats/--no-stats", default=None, help="Speed and memory, to stderr.  [default: on a terminal]")
@click.option("--json", "as_json", is_flag=True, help="Print the whole answer as JSON instead of streaming it.")
def run(
    options: AnswerOptions,
    folder: Path,
    prompt: str | None,
    raw: bool,
    session_file: Path | None,
    threads: int | None,
    ctx: int | None,
    stats: bool | None,
    as_json: bool,
) -> None:
    """Answer one PROMPT with the artifact in DIR, streaming.

    PROMPT is read from standard input if it is "-", or if it is left out and something is piped in.
    """
    from kvedge.runtime.engine import Engine

    sampling = options.sampling()
    check_session_file(session_file)
    question = _read_prompt(prompt)
    with show.spinner(loading_text(folder, ctx)):
        engine = Engine.load(folder, context=ctx, threads=threads)
    with open_session(engine, session_file) as session:
        say = session.generate if raw or not engine.text.has_template else session.chat
        answer = say(question, max_tokens=options.max_tokens, sampling=sampling, stop=options.stop)
        with keeping(session, session_file):
            if as_json:
                print(json.dumps(answer_record(answer.text(), answer, engine)))
            else:
                _stream(answer)
    if sys.stderr.isatty() if stats is None else stats:
        click.echo(answer_stats(answer, engine), err=True)


def _read_prompt(prompt: str | None) -> str:
    """The prompt as text.

    Raises:
        KvedgeError: there is none, or it is not UTF-8.
    """
    if prompt is None and sys.stdin.isatty():
        raise KvedgeError("prompt", expected="text after DIR, or on standard input", got="neither")
    try:
        if prompt is None or prompt == "-":
            prompt = sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
        prompt.encode("utf-8")
    except UnicodeError:
        raise KvedgeError("prompt", expected="UTF-8 text", got="other bytes", fix="convert it first") from None
    require(bool(prompt.strip()), "prompt", expected="some text", got="an empty one")
    return prompt


def loading_text(folder: Path, context: int | None) -> str:
    """What is about to be allocated, said before it is."""
    manifest = artifact.read(folder)
    limits = step_limits(manifest, context=context)
    length = "streams of any length" if manifest.cache.is_endless else f"{limits.context} tokens"
    kv_bytes = manifest.engine.pools * limits_plan(manifest.cache, limits).kv_bytes
    return f"loading {folder}: {size(kv_bytes)} of KV cache for {length}"


def _stream(answer: Answer) -> None:
    """Print the answer as it comes; what is written when the user stops it stays, on a line of its own."""
    try:
        print_pieces(answer)
    except KeyboardInterrupt:
        click.echo()
        raise
    click.echo()


def print_pieces(answer: Answer) -> None:
    """Print the answer as it comes, with a spinner up to its first piece."""
    pieces = iter(answer)
    with show.spinner("reading the prompt"):
        first = next(pieces, "")
    for piece in chain([first], pieces):
        click.echo(piece, nl=False)


def answer_record(text: str, answer: Answer, engine: Engine) -> dict[str, object]:
    """A finished answer, for JSON."""
    usage = answer.usage
    return {
        "text": text,
        "token_ids": answer.token_ids,
        "finish_reason": answer.finish_reason and answer.finish_reason.value,
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "answer_tokens": usage.answer_tokens,
            "prefill_seconds": usage.prefill_seconds,
            "prefill_tokens_per_second": usage.prefill_rate,
            "decode_steps": usage.decode_steps,
            "decode_seconds": usage.decode_seconds,
            "decode_tokens_per_second": show.decode_rate(usage.decode_steps, usage.decode_seconds),
            "packed_pages_read": usage.packed_pages_read,
        },
        "kv_bytes": engine.allocated_bytes,
        "fp16_kv_bytes": engine.plan.fp16_bytes,
    }


def answer_stats(answer: Answer, engine: Engine) -> str:
    """One line about a finished answer."""
    usage = answer.usage
    rate = show.decode_rate(usage.decode_steps, usage.decode_seconds)
    decode = f"decode {rate:.1f} tok/s" if rate else f"decode too short to time ({usage.decode_steps} steps)"
    reason = answer.finish_reason.value if answer.finish_reason else "none"
    return (
        f"prompt {usage.prompt_tokens} tokens, prefill {usage.prefill_rate:.0f} tok/s, "
        f"answer {usage.answer_tokens} tokens, {decode}, {usage.packed_pages_read} packed pages read, "
        f"KV {size(engine.allocated_bytes)} (fp16: {size(engine.plan.fp16_bytes)}), "
        f"finish: {reason}"
    )
