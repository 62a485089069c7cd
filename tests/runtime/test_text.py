"""Text: whole characters while streaming, special tokens, and chat templates in a sandbox."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from kvedge.runtime.text import Text
from kvedge.targets.errors import KvedgeError

SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
TEXTS = {
    "ASCII": "Once upon a time, there was\n\ta window.",
    "accents": "Zażółć gęślą jaźń, naïve façade",
    "combining": "e\u0301 a\u0308\u0304 n\u0303o \u0928\u093f",
    "CJK": "人工知能は速い。한국어 문장, 漢字",
    "emoji": "🙂👍🏽 👩‍👩‍👧‍👦🏳️‍🌈🇮🇹!",
    "right to left": "שלום مرحبا",
    "mathematics": "𝔸 ∑ ∞ 𝛼",
}
HALF = "\ufffd"
"""What a decoder writes for bytes that are no character."""


def byte_tokenizer(corpus: str = "") -> Tokenizer:
    """Byte-level BPE with the special tokens above; merges learned from a corpus, none without."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    size = len(alphabet) + len(SPECIAL) + 40 * bool(corpus)
    special = [AddedToken(text, special=True, normalized=False) for text in SPECIAL]
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator([corpus], trainer)
    return tokenizer


BYTES = byte_tokenizer()
TOKENIZERS = {"bytes": BYTES, "merges": byte_tokenizer(" ".join(TEXTS.values()))}
BYTE_IDS = [BYTES.token_to_id(text) for text in sorted(pre_tokenizers.ByteLevel.alphabet())]


def text_of(tokenizer: Tokenizer | None, template: str | None = None, **special: str) -> Text:
    return Text(tokenizer, template, special)


def pieces_of(text: Text, ids: list[int]) -> list[str]:
    streamer = text.streamer()
    return [streamer.add(token) for token in ids]


# ---- Streaming.


@pytest.mark.parametrize("content", TEXTS.values(), ids=list(TEXTS))
@pytest.mark.parametrize("name", TOKENIZERS)
def test_pieces_are_whole_characters_and_add_up(name: str, content: str) -> None:
    text = text_of(TOKENIZERS[name])
    ids = text.encode(content)
    pieces = pieces_of(text, ids)
    assert HALF not in "".join(pieces)
    assert "".join(pieces) == text.decode(ids) == content


def test_the_merges_cut_characters() -> None:
    """Else the test above would say little."""
    ids = TOKENIZERS["merges"].encode("".join(TEXTS.values())).ids
    alone = [TOKENIZERS["merges"].decode([token]) for token in ids]
    assert any(HALF in piece for piece in alone)
    assert any(len(piece) > 1 and HALF not in piece for piece in alone)


@pytest.mark.parametrize("content", TEXTS.values(), ids=list(TEXTS))
def test_a_character_comes_with_its_last_byte(content: str) -> None:
    """One token a byte: after n tokens, all characters of the first n bytes have been given."""
    text, seen, data = text_of(BYTES), "", content.encode()
    for end, piece in enumerate(pieces_of(text, text.encode(content)), 1):
        seen += piece
        assert seen == data[:end].decode(errors="ignore")


@settings(deadline=None, max_examples=60)
@given(st.text(st.characters(codec="utf-8", exclude_characters=HALF), max_size=40))
def test_any_text_adds_up(content: str) -> None:
    for tokenizer in TOKENIZERS.values():
        text = text_of(tokenizer)
        assert "".join(pieces_of(text, text.encode(content))) == content


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 255), max_size=40))
def test_bytes_that_are_no_text_do_not_break_the_stream(data: list[int]) -> None:
    """A model may write them. What is held back at the end is what never became a character."""
    text, ids = text_of(BYTES), [BYTE_IDS[byte] for byte in data]
    seen, whole = "".join(pieces_of(text, ids)), text.decode(ids)
    assert whole.startswith(seen)
    assert not whole[len(seen) :].strip(HALF)


@pytest.mark.parametrize("content", ["🙂", "a🙂b", "人"])
def test_special_tokens_are_skipped_even_inside_a_character(content: str) -> None:
    text = text_of(BYTES)
    ids, marks = text.encode(content), [BYTES.token_to_id(each) for each in SPECIAL]
    mixed = marks + [token for pair in zip(ids, marks * len(ids), strict=False) for token in pair] + marks
    assert "".join(pieces_of(text, mixed)) == content
    assert pieces_of(text, marks) == [""] * len(marks)
    assert text.decode(marks) == "".join(SPECIAL)


def test_two_answers_do_not_share_a_stream() -> None:
    text = text_of(BYTES)
    first, second = text.streamer(), text.streamer()
    start, *rest = text.encode("🙂")
    assert first.add(start) == ""
    assert [second.add(token) for token in text.encode("ok")] == ["o", "k"]
    assert [first.add(token) for token in rest] == ["", "", "🙂"]


def test_only_a_whole_text_gets_special_tokens_around_it() -> None:
    tokenizer = byte_tokenizer()
    first = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", first)])
    text = text_of(tokenizer)
    assert text.encode("hi") == [first, *text.encode_part("hi")]
    assert text.decode(text.encode_part("hi")) == "hi"
    assert text.encode_part("<s>hi") == text.encode("hi"), "special tokens in the text are special"


# ---- What an artifact holds.


def test_tokenizer_and_template_are_read_from_the_folder(tmp_path: Path) -> None:
    BYTES.save(str(tmp_path / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": None, "model_max_length": 128}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    template = "{{ bos_token }}{{ messages[0].content }}☃{{ eos_token }}{{ 'no pad' if not pad_token }}"
    (tmp_path / "chat_template.jinja").write_text(template, encoding="utf-8")
    text = Text.load(tmp_path)
    assert (text.has_tokenizer, text.has_template) == (True, True)
    assert text.decode(text.encode("人")) == "人"
    assert text.render([{"role": "user", "content": "hi"}], add_generation_prompt=False) == "<s>hi☃</s>no pad"


def test_an_artifact_may_have_neither(tmp_path: Path) -> None:
    text = Text.load(tmp_path)
    assert (text.has_tokenizer, text.has_template) == (False, False)
    for use in (
        lambda: text.encode("a"),
        lambda: text.encode_part("a"),
        lambda: text.decode([1]),
        text.streamer,
    ):
        with pytest.raises(KvedgeError, match="no tokenizer; expected tokenizer.json; feed token ids"):
            use()
    with pytest.raises(KvedgeError, match="no chat template; use --raw"):
        text.render([], add_generation_prompt=True)


# ---- Chat templates.

CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "<b>1 & 2</b>"},
    {"role": "assistant", "content": "3"},
]
CHAT = """{{ bos_token }}{% for message in messages %}
    {% if message['role'] == 'tool' %}{{ raise_exception('no tools, please') }}{% endif %}
    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' }}
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def render(template: str, messages: list[dict[str, str]] = CONVERSATION, *, prompt: bool = False) -> str:
    text = text_of(None, template, bos_token="<s>", eos_token="</s>")
    return text.render(messages, add_generation_prompt=prompt)


def test_a_conversation_is_written_as_the_template_says() -> None:
    turns = [f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in CONVERSATION]
    assert render(CHAT) == "<s>" + "".join(turns)
    assert render(CHAT, prompt=True) == "<s>" + "".join(turns) + "<|im_start|>assistant\n"


def test_a_template_may_refuse() -> None:
    with pytest.raises(KvedgeError, match="^the chat template refuses .*; got no tools, please$"):
        render(CHAT, [{"role": "tool", "content": ""}])


ATTACKS = (
    "{{ ''.__class__.__mro__ }}",
    "{{ ''['__class__']['__base__'] }}",
    "{{ (''|attr('__class__')).__subclasses__() }}",
    "{{ messages.__init__.__globals__ }}",
    "{{ raise_exception.__code__.co_filename }}",
    "{{ raise_exception.__globals__['KvedgeError'] }}",
    "{{ cycler.__init__.__globals__['os'] }}",
    "{{ self.__init__.__globals__ }}",
    "{% for key in messages.__class__.__subclasses__() %}{{ key }}{% endfor %}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(role='x') }}",
)
HIDDEN = (
    "{{ ''.__class__ }}",
    "{{ ''|attr('__class__') }}",
    "{{ '{0.__class__}'.format('') }}",
    "{{ messages[0].get.__self__ }}",
    "{{ raise_exception.__globals__ }}",
)


@pytest.mark.parametrize("template", ATTACKS)
def test_a_template_cannot_leave_its_sandbox(template: str) -> None:
    with pytest.raises(KvedgeError, match="^the chat template fails; got .+; use --raw$"):
        render(template)
    assert CONVERSATION[0] == {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize("template", HIDDEN)
def test_internals_are_empty_to_a_template(template: str) -> None:
    """jinja2's sandbox says nothing about an unsafe attribute until it is used."""
    assert render(template) == ""


BROKEN = (
    "{% if %}",
    "{{ unknown.name }}",
    "{{ unknown() }}",
    "{{ 1 / 0 }}",
    "{{ 'a' + 1 }}",
    "{{ messages[0].content | int + 'a' }}",
    "{% for n in range(10 ** 9) %}{% endfor %}",
    "{% include 'tokenizer.json' %}",
    "{{ strftime_now(1) }}",
)


@pytest.mark.parametrize("template", BROKEN)
def test_a_broken_template_is_an_error_in_one_line(template: str) -> None:
    with pytest.raises(KvedgeError, match="^the chat template fails; got .+; use --raw$"):
        render(template)


@pytest.mark.parametrize(
    ("template", "want"),
    [
        (
            "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
            "system",
        ),
        (
            "{% for m in messages %}{% if not loop.last %}{% continue %}{% endif %}{{ m.role }}{% endfor %}",
            "assistant",
        ),
        ("{{ messages[1].content | tojson }}", '"<b>1 & 2</b>"'),
        ("{{ '☃' | tojson }}", '"☃"'),
        ("{{ strftime_now('%Y') | length }}", "4"),
    ],
)
def test_what_templates_of_hugging_face_models_may_use(template: str, want: str) -> None:
    """transformers gives templates loop controls, a plain tojson and strftime_now: models rely on them."""
    assert render(template) == want
