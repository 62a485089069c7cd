"""Sessions on tiny models: answers, what is pending between them, refusals, chat."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tiny_engines import END, TOLERANCE, Artifacts, Load, Spy, error, tokens, word_tokenizer
from tiny_models import VOCAB

from kvedge.runtime.answer import FinishReason
from kvedge.runtime.engine import Engine
from kvedge.runtime.sample import Sampler
from kvedge.runtime.session import Session
from kvedge.targets.errors import KvedgeError

BOTH = pytest.mark.parametrize("name", ["fp", "int3"])

Say = Callable[..., None]


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    return Artifacts(tmp_path_factory.mktemp("artifacts"))


@pytest.fixture(scope="module")
def load(artifacts: Artifacts) -> Load:
    return artifacts.load


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Say:
    """Makes every model say given tokens."""

    def script(*ids: int) -> None:
        said = iter(ids)
        monkeypatch.setattr(Sampler, "choose", lambda *_: next(said))

    return script


# ---- Answers.


@pytest.mark.parametrize("max_tokens", [1, 2, 9])
def test_an_answer_has_max_tokens(max_tokens: int, load: Load) -> None:
    session = load("int3").session()
    answer = session.generate(tokens(50), max_tokens=max_tokens)
    assert (answer.finish_reason, session.num_tokens) == (None, 0), "nothing happens before it is read"
    answer.text()
    assert answer.finish_reason is FinishReason.MAX_TOKENS
    assert len(answer.token_ids) == answer.usage.answer_tokens == max_tokens
    assert (answer.usage.prompt_tokens, answer.usage.decode_steps) == (50, max_tokens - 1)
    assert session.num_tokens == 50 + max_tokens - 1


@pytest.mark.parametrize("length", [50, 59, 60])
@pytest.mark.parametrize("name", ["fp, no window", "int3, no window"])
def test_without_a_window_an_answer_ends_with_the_context(name: str, length: int, load: Load) -> None:
    session, larger = load(name, context=60).session(), load(name).session()
    answer, longer = (each.generate(tokens(length), max_tokens=30) for each in (session, larger))
    assert answer.text() == longer.text() == ""
    assert (answer.finish_reason, session.num_tokens) == (FinishReason.LENGTH, 60)
    assert answer.token_ids == longer.token_ids[: 61 - length]
    with pytest.raises(KvedgeError, match="^prompt; expected at most the 0 tokens left of a context of 60; got 2"):
        session.generate([5])


@pytest.mark.parametrize("end", [7, 300, END])
def test_every_end_token_stops(end: int, artifacts: Artifacts, load: Load, say: Say) -> None:
    engine = Engine.load(artifacts.copy("int3", eos_ids=(7, 300, END)), threads=1)
    session, spy = engine.session(), Spy(engine)
    say(400, 401, end, 402)
    answer = session.generate(tokens(50), max_tokens=30)
    assert answer.text() == "w400w401"
    assert (answer.finish_reason, answer.token_ids) == (FinishReason.STOP, [400, 401])
    session.generate([8], max_tokens=1).text()
    spy.check(load("int3"), [*tokens(50), 400, 401, 8])


@pytest.mark.parametrize("close", [False, True])
def test_a_reader_may_stop_early(close: bool, artifacts: Artifacts, load: Load, say: Say) -> None:
    engine = Engine.load(artifacts.copy("int3"), threads=1)
    session, spy = engine.session(), Spy(engine)
    say(*range(300, 340))
    answer = session.generate(tokens(50))
    pieces = [piece for piece, _ in zip(answer, range(3), strict=False)][:3]
    if close:
        iter(answer).close()  # type: ignore[attr-defined]
    said = answer.token_ids
    assert (answer.finish_reason, pieces) == (FinishReason.CANCELLED, [f"w{token}" for token in said[:3]])
    again = session.generate(tokens(20, 2), max_tokens=3)
    again.text()
    spy.check(load("int3"), [*tokens(50), *said, *tokens(20, 2), *again.token_ids[:2]])
    assert again.finish_reason is FinishReason.MAX_TOKENS


@BOTH
def test_a_long_prompt_may_come_in_any_chunks(name: str, load: Load) -> None:
    answers, spies = [], []
    for chunk in (32, 128, 501):
        engine = load(name, chunk=chunk)
        spies.append(Spy(engine))
        answers.append(engine.session().generate(tokens(500), max_tokens=12))
        answers[-1].text()
    assert len(answers[0].token_ids) == 12
    assert answers[0].token_ids == answers[1].token_ids == answers[2].token_ids
    assert max(error(spy.logits, spies[0].logits) for spy in spies) <= TOLERANCE[name]


@BOTH
def test_two_answers_are_one_stream(name: str, load: Load) -> None:
    """The last token of an answer is not in the cache yet: it goes in front of the next prompt."""
    engine, other = load(name), load(name)
    session, spy, at_once = engine.session(), Spy(engine), other.session()
    first = session.generate(tokens(40), max_tokens=6)
    first.text()
    second = session.generate(tokens(30, 2), max_tokens=6)
    second.text()
    everything = at_once.generate([*tokens(40), *first.token_ids, *tokens(30, 2)], max_tokens=6)
    everything.text()
    assert second.token_ids == everything.token_ids
    assert session.num_tokens == at_once.num_tokens == 81
    fed = [*tokens(40), *first.token_ids, *tokens(30, 2), *second.token_ids[:5]]
    spy.check(load(name), fed, TOLERANCE[name])


def test_feeding_goes_on_after_the_answer(load: Load) -> None:
    engine = load("int3")
    session, spy = engine.session(), Spy(engine)
    answer = session.generate(tokens(40), max_tokens=6)
    answer.text()
    session.feed(tokens(20, 2))
    session.feed([9])
    spy.check(load("int3"), [*tokens(40), *answer.token_ids, *tokens(20, 2), 9])


def test_rollback_after_an_answer(load: Load) -> None:
    """Of six tokens, five are in the cache: two of them go, and with them the sixth."""
    engine = load("int3")
    session, spy = engine.session(), Spy(engine)
    answer = session.generate(tokens(40), max_tokens=6)
    answer.text()
    session.rollback(2)
    assert session.num_tokens == 43
    session.generate([9], max_tokens=1).text()
    assert spy.fed == [*tokens(40), *answer.token_ids[:5], 9]
    spy.fed[43:45] = []
    spy.check(load("int3"), [*tokens(40), *answer.token_ids[:3], 9])


BAD_IDS = {
    "none": ([], "got"),
    "too large": ([5, VOCAB], "token ids"),
    "negative": ([-1], "token ids"),
    "bad in the second chunk": ([5] * 40 + [VOCAB], "token ids"),
    "no room": (tokens(79), "tokens left of a context of 100"),
}


@pytest.mark.parametrize(("ids", "message"), BAD_IDS.values(), ids=list(BAD_IDS))
@pytest.mark.parametrize("use", [lambda s, ids: s.generate(ids).text(), Session.feed], ids=["generate", "feed"])
def test_what_is_refused_leaves_no_trace(
    use: Callable[[Session, list[int]], object], ids: list[int], message: str, load: Load
) -> None:
    engine = load("int3, no window", context=100)
    session, spy = engine.session(), Spy(engine)
    answer = session.generate(tokens(20), max_tokens=3)
    answer.text()
    with pytest.raises(KvedgeError, match=message):
        use(session, ids)
    assert session.num_tokens == 22
    session.generate([9], max_tokens=1).text()
    spy.check(load("int3, no window"), [*tokens(20), *answer.token_ids, 9])


def test_numbers_of_tokens_are_checked(load: Load) -> None:
    with pytest.raises(KvedgeError, match="^max tokens; expected 1 or more; got 0$"):
        load("int3").session().generate([5], max_tokens=0)


# ---- Chat.

CHAT = """{{ bos_token }}{% for turn in messages %}<|im_start|>{{ turn.role }}
{{ turn.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
STRIPS = CHAT.replace("turn.content", "turn.content | trim")
"""Writes an earlier answer in another way than the model did, if it had spaces around it."""


def ids_of(text: str) -> list[int]:
    return list(word_tokenizer().encode(text).ids)


def conversation(*contents: str) -> list[int]:
    """Tokens of turns of user and model, up to where the model speaks."""
    turns = zip(("user", "assistant") * len(contents), contents, strict=False)
    written = [f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns]
    return ids_of("<s>" + "".join(written) + "<|im_start|>assistant\n")


def chat_engine(artifacts: Artifacts, name: str = "int3", template: str = CHAT, **options: int) -> Engine:
    return Engine.load(artifacts.copy(name, template=template), threads=1, **options)


@pytest.mark.parametrize("said", ["Hello 🙂", " with spaces\n", "人", "{{ bos_token }} <b>"])
@pytest.mark.parametrize("stops", [True, False])
def test_turns_are_the_whole_conversation(said: str, stops: bool, artifacts: Artifacts, load: Load, say: Say) -> None:
    """Also where the answer was cut: its last token is still to be fed."""
    engine = chat_engine(artifacts)
    session, spy, length = engine.session(), Spy(engine), len(ids_of(said))
    say(*ids_of(said), *[END] * stops, *ids_of("yes"), END, *ids_of("no"), END)
    first = session.chat("Hi ☃", max_tokens=length + stops)
    assert first.text() == said
    assert first.finish_reason is (FinishReason.STOP if stops else FinishReason.MAX_TOKENS)
    assert session.chat("And?").text() == "yes"
    assert session.chat("So?").text() == "no"
    whole = conversation("Hi ☃", said, "And?", "yes", "So?") + ids_of("no")
    spy.check(load("int3"), whole)
    assert session.num_tokens == len(whole)


def test_a_template_that_rewrites_turns_is_fed_again(artifacts: Artifacts, load: Load, say: Say) -> None:
    engine = chat_engine(artifacts, template=STRIPS)
    session, spy = engine.session(), Spy(engine)
    say(*ids_of(" Hello\n"), END, *ids_of("yes"), END, *ids_of("no"), END)
    for message, said in (("Hi", " Hello\n"), ("And?", "yes"), ("So?", "no")):
        assert session.chat(message).text() == said
    whole = conversation("Hi", "Hello", "And?", "yes", "So?") + ids_of("no")
    assert spy.fed[: -len(whole)] == conversation("Hi") + ids_of(" Hello\n")
    assert session.num_tokens == len(whole)
    spy.fed = spy.fed[-len(whole) :]
    spy.check(load("int3"), whole)


def test_an_answer_cut_inside_a_character(artifacts: Artifacts, load: Load, say: Say) -> None:
    engine = chat_engine(artifacts)
    session, spy, half = engine.session(), Spy(engine), ids_of("🙂")[:2]
    say(*half, *ids_of("yes"), END)
    assert session.chat("Hi", max_tokens=2).text() == ""
    assert session.chat("And?").text() == "yes"
    after = "<|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\nyes"
    spy.check(load("int3"), conversation("Hi") + half + ids_of(after))


@pytest.mark.parametrize("close", [True, False])
def test_a_chat_goes_on_after_a_reader_stopped_early(close: bool, artifacts: Artifacts, load: Load, say: Say) -> None:
    engine = chat_engine(artifacts)
    session, spy = engine.session(), Spy(engine)
    say(*ids_of("Hello"), *ids_of("yes"), END)
    answer = session.chat("Hi")
    pieces = iter(answer)
    assert [next(pieces) for _ in "Hello"] == list("Hello")
    if close:
        pieces.close()  # type: ignore[attr-defined]
    assert session.chat("And?").text() == "yes"
    spy.check(load("int3"), conversation("Hi", "Hello", "And?") + ids_of("yes"))
    assert answer.finish_reason is FinishReason.CANCELLED


@pytest.mark.parametrize("template", [CHAT, STRIPS], ids=["plain", "rewrites"])
def test_a_message_without_room_leaves_no_trace(template: str, artifacts: Artifacts, say: Say) -> None:
    engine = chat_engine(artifacts, "int3, no window", template, context=100)
    session, spy = engine.session(), Spy(engine)
    say(*ids_of(" Hello"), END, *ids_of("yes"), END)
    session.chat("Hi").text()
    before = session.num_tokens
    with pytest.raises(KvedgeError, match="left of a context of 100"):
        session.chat("x" * 100)
    assert session.num_tokens == before
    session.chat("And?").text()
    whole = conversation("Hi", " Hello" if template == CHAT else "Hello", "And?") + ids_of("yes")
    assert spy.fed[-len(whole) :] == whole


def test_a_turn_that_failed_is_not_remembered(artifacts: Artifacts, say: Say) -> None:
    engine = chat_engine(artifacts)
    other, session, spy = engine.session(), engine.session(), Spy(engine)
    say(*ids_of("yes"), END)
    other.feed(tokens(100))
    with pytest.raises(MemoryError):
        session.chat("Hi").text()
    other.close()
    spy.fed.clear()
    session.chat("And?").text()
    assert spy.fed == conversation("And?") + ids_of("yes")


def test_clear_begins_a_new_conversation(artifacts: Artifacts, say: Say) -> None:
    engine = chat_engine(artifacts)
    session, spy = engine.session(), Spy(engine)
    say(*ids_of("yes"), *ids_of("no"), END)
    session.chat("Hi", max_tokens=3).text()
    session.clear()
    spy.fed.clear()
    session.chat("And?").text()
    assert spy.fed == conversation("And?") + ids_of("no")


@pytest.mark.parametrize(
    ("template", "message", "error_text"),
    [(CHAT, "", "got an empty one"), (CHAT, " \n", "got an empty one"), (None, "Hi", "no chat template")],
)
def test_what_is_no_message_is_refused(
    template: str | None, message: str, error_text: str, artifacts: Artifacts
) -> None:
    session = Engine.load(artifacts.copy("int3", template=template), threads=1).session()
    with pytest.raises(KvedgeError, match=error_text):
        session.chat(message)
    assert session.num_tokens == 0


@pytest.mark.parametrize("length", [20, 50])
def test_an_interrupt_right_after_a_step_feeds_nothing_twice(
    length: int, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens are counted in the cache, and the session has not noticed yet."""
    engine = load("int3")
    session, spy = engine.session(), Spy(engine)
    settle = Session._settle

    def interrupted(self: Session) -> None:
        if self.num_tokens:
            raise KeyboardInterrupt
        settle(self)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "_settle", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.generate(tokens(length), max_tokens=3).text()
    session.generate([9], max_tokens=1).text()
    assert session.num_tokens == length + 1
    spy.check(load("int3"), [*tokens(length), 9])
