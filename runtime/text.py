"""Text and tokens: the tokenizer, the chat template, and streaming without broken characters."""

from __future__ import annotations

import json
from collections.abc import Sequence as Many
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvedge.targets.errors import KvedgeError
from kvedge.targets.manifest import TOKENIZER

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from kvedge.runtime.template import Message

TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"


class Text:
    """Tokenizer and chat template of an artifact; either may be absent.

    Args:
        tokenizer: None where the artifact has none: token ids only.
        template: source of the chat template, or None.
        special: names and texts of special tokens, for the template.
    """

    def __init__(self, tokenizer: Tokenizer | None, template: str | None, special: dict[str, str]) -> None:
        self._tokenizer, self._template, self._special = tokenizer, template, special

    @classmethod
    def load(cls, folder: Path) -> Text:
        """Read tokenizer files from an artifact folder."""
        from tokenizers import Tokenizer

        path = folder / TOKENIZER
        config = _read_json(folder / TOKENIZER_CONFIG)
        template_path = folder / CHAT_TEMPLATE
        template = template_path.read_text(encoding="utf-8") if template_path.is_file() else None
        special = {key: value for key, value in config.items() if key.endswith("_token") and isinstance(value, str)}
        return cls(Tokenizer.from_file(str(path)) if path.is_file() else None, template, special)

    @property
    def has_tokenizer(self) -> bool:
        """Whether text can be encoded and decoded."""
        return self._tokenizer is not None

    @property
    def has_template(self) -> bool:
        """Whether `render` works."""
        return self._template is not None

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer.

        Raises:
            KvedgeError: the artifact has none.
        """
        if self._tokenizer is None:
            raise KvedgeError(
                "this artifact has no tokenizer", expected=TOKENIZER, fix="feed token ids instead of text"
            )
        return self._tokenizer

    def encode(self, text: str) -> list[int]:
        """Tokens of a whole text, with the special tokens that the tokenizer puts around it."""
        return list(self.tokenizer.encode(text).ids)

    def encode_part(self, text: str) -> list[int]:
        """Tokens of a piece in the middle of a stream: no special tokens around it."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Many[int]) -> str:
        """Text of tokens, special ones included."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def streamer(self) -> Streamer:
        """A decoder for one answer."""
        return Streamer(self.tokenizer)

    def render(self, messages: Many[Message], *, add_generation_prompt: bool) -> str:
        """A conversation as the model's template writes it, in jinja2's sandbox.

        Raises:
            KvedgeError: no template, or one that fails.
        """
        if self._template is None:
            raise KvedgeError("this artifact has no chat template", fix="use --raw, or Session.generate")
        from kvedge.runtime.template import render_chat

        return render_chat(self._template, messages, self._special, add_generation_prompt=add_generation_prompt)


class Streamer:
    """Turns tokens into text as they come; holds back what is not yet a whole character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        from tokenizers.decoders import DecodeStream

        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)

    def add(self, token: int) -> str:
        """Text that the token completes; may be empty."""
        return self._stream.step(self._tokenizer, token) or ""


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
