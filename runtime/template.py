"""Chat templates in jinja2's sandbox, with what Hugging Face templates expect to find there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

from jinja2.exceptions import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kvedge.targets.errors import KvedgeError

Message = dict[str, str]
"""A turn of a conversation: its role and content."""


def render_chat(
    template: str, messages: Sequence[Message], special: dict[str, str], *, add_generation_prompt: bool
) -> str:
    """A conversation as the template writes it. `special` holds special tokens by name, such as bos_token.

    Raises:
        KvedgeError: the template fails, or refuses the conversation.
    """
    try:
        return (
            _environment()
            .from_string(template)
            .render(messages=list(messages), add_generation_prompt=add_generation_prompt, **special)
        )
    except (TemplateError, TypeError, ValueError, ArithmeticError, AttributeError, LookupError) as error:
        if isinstance(error, KvedgeError):
            raise
        got = " ".join(str(error).split()) or type(error).__name__
        raise KvedgeError("the chat template fails", got=got, fix="use --raw") from error


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": lambda style: datetime.now().strftime(style)}
    return environment


def _to_json(value: object, indent: int | None = None) -> str:
    """jinja's own escapes for HTML, which models do not expect."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> None:
    raise KvedgeError("the chat template refuses this conversation", got=message)
