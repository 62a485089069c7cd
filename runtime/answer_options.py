"""Options of the commands that write answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from kvedge.runtime.sample import DEFAULT_REPEAT_LAST, Sampling


@dataclass
class AnswerOptions:
    """What was asked of an answer on the command line."""

    max_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    repeat_last: int = DEFAULT_REPEAT_LAST
    seed: int | None = None
    stop: tuple[str, ...] = ()

    def sampling(self) -> Sampling:
        """How tokens are chosen.

        Raises:
            KvedgeError: a number out of range.
        """
        return Sampling(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repeat_penalty=self.repeat_penalty,
            repeat_last=self.repeat_last,
            seed=self.seed,
        )


def answer_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of an answer; it gets an AnswerOptions as its first argument."""
    command = click.make_pass_decorator(AnswerOptions, ensure=True)(command)
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def _option(*names: str, **facts: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """An option that is kept in the AnswerOptions of its command, not handed to the function."""

    def keep(context: click.Context, parameter: click.Parameter, value: object) -> None:
        setattr(context.ensure_object(AnswerOptions), str(parameter.name), value)

    return click.option(*names, expose_value=False, callback=keep, **facts)


_OPTIONS = (
    _option("--max-tokens", type=click.IntRange(min=1), default=512, show_default=True, help="Most tokens to write."),
    _option("--temperature", type=float, default=0.0, show_default=True, help="0 for the likeliest token each time."),
    _option("--top-k", type=int, default=0, show_default=True, help="Draw from the k likeliest tokens; 0 for all."),
    _option("--top-p", type=float, default=1.0, show_default=True, help="Draw from the likeliest tokens only."),
    _option(
        "--min-p", type=float, default=0.0, show_default=True, help="Drop tokens below this share of the likeliest."
    ),
    _option(
        "--repeat-penalty", type=float, default=1.0, show_default=True, help="Above 1: less of what was just said."
    ),
    _option(
        "--repeat-last",
        type=int,
        default=DEFAULT_REPEAT_LAST,
        show_default=True,
        help="Tokens that count as just said.",
    ),
    _option("--seed", type=int, help="Makes a sampled answer repeatable."),
    _option("--stop", multiple=True, metavar="TEXT", help="End the answer in front of this text; repeatable."),
)
