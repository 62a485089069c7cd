"""`kvedge chat`."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvedge.runtime import show
from kvedge.runtime.answer_options import AnswerOptions, answer_options
from kvedge.runtime.command_inspect import sight_text
from kvedge.runtime.command_run import answer_record, answer_stats, loading_text, print_pieces
from kvedge.runtime.inspection import sight
from kvedge.runtime.session_option import check_session_file, open_session, session_option
from kvedge.targets import manifest as artifact
from kvedge.targets.errors import KvedgeError, require
from kvedge.targets.units import size

if TYPE_CHECKING:
    from kvedge.runtime.answer import Answer
    from kvedge.runtime.engine import Engine
    from kvedge.runtime.session import Session

_EXAMPLES = """
\b
Examples:
  kvedge chat ./my-model-int3
  kvedge chat ./my-model-int3 --temperature 0.7 --min-p 0.05 --repeat-penalty 1.1
  kvedge chat ./my-model-int3 --session talk.kv            goes on where it was left
  kvedge chat ./my-model-int3 --json < questions.txt       one turn a line, one JSON record an answer

\b
While chatting:
  /clear    begin a new conversation
  /stats    speed, memory, and what is still remembered
  /exit     leave; so do Ctrl-D, and Ctrl-C twice
  Ctrl-C    stop the answer
"""

Guard = Callable[["Answer"], AbstractContextManager[None]]
"""What surrounds the writing of an answer."""

_HELP = (
    "/clear begins a new conversation, /stats shows speed and memory, /exit or Ctrl-D leaves, Ctrl-C stops an answer"
)
_COMMAND = re.compile(r"/[a-z]+")
_PROMPT = "> "
_NOTES = {
    "max_tokens": "cut after {max_tokens} tokens: --max-tokens allows more",
    "length": "the context is full: /clear begins a new conversation",
    "cancelled": "stopped",
}
"""What is said of an answer that did not end by itself."""


@click.command(epilog=_EXAMPLES)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@answer_options
@session_option
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads.  [default: all cores]")
@click.option("--ctx", type=int, help="Tokens of a cache without a window.  [default: the model's positions]")
@click.option("--json", "as_json", is_flag=True, help="Print every answer as one line of JSON.")
def chat(
    options: AnswerOptions,
    folder: Path,
    session_file: Path | None,
    threads: int | None,
    ctx: int | None,
    as_json: bool,
) -> None:
    """Talk with the artifact in DIR.

    The conversation is kept, as far as the cache remembers. Lines that are piped in are taken one by one, each as one
    turn; then an error or Ctrl-C ends the program.
    """
    from kvedge.runtime.engine import Engine

    options.sampling()
    _require_chat_format(folder)
    check_session_file(session_file)
    with show.spinner(loading_text(folder, ctx)):
        engine = Engine.load(folder, context=ctx, threads=threads)
    typed = sys.stdin.isatty()
    if typed:
        click.echo(f"{engine.manifest.model.name}, {size(engine.allocated_bytes)} of KV cache; {_HELP}", err=True)
    guard = _cancelled_by_ctrl_c if typed else _not_cancelled
    with open_session(engine, session_file) as session:
        _converse(_Talk(engine, session, options, guard, as_json, session_file), typed)


def _converse(talk: _Talk, typed: bool) -> None:
    """Take lines until they end."""
    for line in _typed_lines() if typed else _piped_lines():
        try:
            if not talk.take(line):
                break
        except KvedgeError as error:
            if not typed:
                raise
            click.echo(f"error: {error}", err=True)
        except KeyboardInterrupt:
            if not typed:
                raise


class _Talk:
    """A conversation, line by line.

    Args:
        engine: the model.
        session: the conversation so far.
        options: how it answers.
        guard: what surrounds the writing of an answer.
        as_json: print records instead of text.
        session_file: where the conversation is kept after every turn, None for nowhere.
    """

    def __init__(
        self,
        engine: Engine,
        session: Session,
        options: AnswerOptions,
        guard: Guard,
        as_json: bool,
        session_file: Path | None,
    ) -> None:
        self._engine, self._session, self._file = engine, session, session_file
        self._options, self._guard, self._as_json = options, guard, as_json
        self._last: Answer | None = None

    def take(self, line: str) -> bool:
        """Do what a line says; whether the talk goes on.

        Raises:
            KvedgeError: a message that cannot be answered.
        """
        word = line.strip()
        if word == "/exit":
            return False
        if word == "/clear":
            self._session.clear()
            self._last = None
            self._keep()
            click.echo("(a new conversation)", err=True)
        elif word == "/stats":
            click.echo(self._stats(), err=True)
        elif _COMMAND.fullmatch(word):
            click.echo(_HELP, err=True)
        elif word:
            self._answer(line)
        return True

    def _answer(self, line: str) -> None:
        options = self._options
        fine = line.isprintable() or line.encode("utf-8", "ignore").decode() == line
        require(fine, "prompt", expected="UTF-8 text", got="other bytes")
        answer = self._session.chat(line, max_tokens=options.max_tokens, sampling=options.sampling(), stop=options.stop)
        self._last = answer
        with self._guard(answer):
            if self._as_json:
                click.echo(json.dumps(answer_record(answer.text(), answer, self._engine)))
            else:
                print_pieces(answer)
                click.echo()
        note = _NOTES.get(answer.finish_reason.value) if answer.finish_reason else None
        if note and not self._as_json:
            click.echo(f"({note.format(max_tokens=options.max_tokens)})", err=True)
        self._keep()

    def _keep(self) -> None:
        if self._file is not None:
            self._session.save(self._file)

    def _stats(self) -> str:
        """The last answer, and what the widest layers still see."""
        tokens = self._session.num_tokens
        if self._last is None or tokens == 0:
            return "nothing was said yet"
        widest = max(self._engine.manifest.cache.groups, key=lambda rules: rules.span(tokens))
        seen = sight_text(sight(widest, tokens))
        return f"{answer_stats(self._last, self._engine)}\nconversation {tokens:,} tokens, of which it sees {seen}"


def _require_chat_format(folder: Path) -> None:
    from kvedge.runtime.text import CHAT_TEMPLATE

    require(
        CHAT_TEMPLATE in artifact.read(folder).files,
        f"artifact {folder} has no chat format",
        expected=f"a {CHAT_TEMPLATE} in it",
        fix="continue a text with `kvedge run DIR --raw`",
    )


def _typed_lines() -> Iterator[str]:
    """Lines from the keyboard, with editing and history where the system has readline."""
    with suppress(ImportError):
        import_module("readline")
    interrupted = False
    while True:
        try:
            line = _ask()
        except EOFError:
            click.echo(err=True)
            return
        except KeyboardInterrupt:
            click.echo(err=True)
            if interrupted:
                return
            interrupted = True
            click.echo("(Ctrl-C again, Ctrl-D or /exit leaves)", err=True)
        else:
            interrupted = False
            yield line


def _ask() -> str:
    if sys.stdout.isatty():
        return input(_PROMPT)
    click.echo(_PROMPT, nl=False, err=True)  # keep it out of the file that answers go to
    return input()


def _piped_lines() -> Iterator[str]:
    """Lines from standard input.

    Raises:
        KvedgeError: not UTF-8.
    """
    for line in sys.stdin.buffer:
        try:
            yield line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise KvedgeError(
                "standard input", expected="UTF-8 text", got="other bytes", fix="convert it first"
            ) from None


@contextmanager
def _cancelled_by_ctrl_c(answer: Answer) -> Iterator[None]:
    """Ctrl-C ends the answer at its next step, and nothing else."""
    before = signal.signal(signal.SIGINT, lambda *_: answer.cancel())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _not_cancelled(_: Answer) -> AbstractContextManager[None]:
    return nullcontext()
