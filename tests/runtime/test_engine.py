"""Engine and sessions on tiny models: memory, ragged batches, rollback, answers, chat, damaged artifacts."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from tiny_models import VOCAB, stream_logits, tiny_llama, write_artifact
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from kvedge.export.settings import CacheSettings
from kvedge.export.trace import trace
from kvedge.runtime.engine import Engine, Row, StepResult
from kvedge.runtime.sample import Sampler
from kvedge.runtime.sequence import Sequence
from kvedge.runtime.session import FinishReason, Session
from kvedge.targets import manifest as artifact
from kvedge.targets.errors import KvedgeError
from kvedge.targets.kinds import Kind
from kvedge.targets.manifest import Manifest, ModelInfo
from kvedge.targets.plan import plan_memory
from kvedge.targets.spec import CacheSpec, LayerSpec, PageRules, RopeSpec

POSITIONS = 128
P7_FP = 2e-5
P7_INT3 = 2e-3
"""As where streams are cut: a value next to a code boundary may fall to either side."""


def settings_of(kind: Kind, window: int | None = 37, sinks: int = 4) -> CacheSettings:
    return CacheSettings(kind=kind, window=window, sinks=sinks, recent=16, page=8)


SETTINGS = {
    "fp": settings_of(Kind.FP),
    "int3": settings_of(Kind.INT3),
    "fp, no window": settings_of(Kind.FP, None),
    "int3, no window": settings_of(Kind.INT3, None),
    "int4, no sinks": settings_of(Kind.INT4, 48, 0),
    "k3v2, never packs": settings_of(Kind.K3V2, 17),
}
TOLERANCE = {name: P7_FP if settings.kind is Kind.FP else P7_INT3 for name, settings in SETTINGS.items()}
WINDOWED = ("fp", "int3")
BOTH = pytest.mark.parametrize("name", WINDOWED)

Load = Callable[..., Engine]


@cache
def traced():  # type: ignore[no-untyped-def]
    loaded = tiny_llama(max_positions=POSITIONS)
    return loaded, trace(loaded)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The artifact of one of SETTINGS."""
    root = tmp_path_factory.mktemp("artifacts")
    return cache(lambda name: write_artifact(*traced(), SETTINGS[name], root / name))


@pytest.fixture(scope="module")
def load(folders: Callable[[str], Path]) -> Load:
    return lambda name, **options: Engine.load(folders(name), **({"chunk": 32, "threads": 1} | options))


def tokens(length: int, seed: int = 1) -> list[int]:
    return np.random.default_rng(seed).integers(3, VOCAB, length).tolist()


def cuts_of(length: int, chunk: int) -> list[int]:
    return [*range(chunk, length, chunk), length]


def error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.abs(got - want).max() / want.std())


def feed(engine: Engine, sequence: Sequence, ids: list[int]) -> None:
    for first in range(0, len(ids), engine.plan.chunk):
        engine.step([Row(sequence, ids[first : first + engine.plan.chunk])], [0])


class Spy:
    """Remembers what an engine is fed, and the newest logits that it gave."""

    def __init__(self, engine: Engine) -> None:
        self.fed: list[int] = []
        self.logits = np.zeros(0, np.float32)
        self._step = engine.step
        engine.step = self.step  # type: ignore[method-assign]

    def step(self, rows: list[Row], logits_index: list[int]) -> StepResult:
        result = self._step(rows, logits_index)
        self.fed += rows[0].ids
        self.logits = result.logits[0, -1].copy()
        return result


# ---- Memory and limits.

HOT_PAGE = 2 * 2 * 8 * 16  # numbers: K and V, 2 heads, 8 tokens, 16 channels


@pytest.mark.parametrize(
    ("name", "options", "hot_pages", "packed_pages"),
    [
        ("fp", {}, 1 + 6, 0),  # 37 in the window, 8 of slack
        ("fp", {"sessions": 3, "chunk": 5}, 3 * 7, 0),
        ("int3", {}, 1 + 4, 8),  # 16 + 8 exact, 8 of slack; 37 - 16 + 32 packed, and a cut page
        ("int3", {"chunk": 1}, 5, 5),
        ("int3", {"sessions": 2, "chunk": 100, "context": 50}, 2 * 5, 2 * 17),
        ("fp, no window", {}, 1 + 16, 0),
        ("int3, no window", {"context": 1}, 1 + 1, 1),
        ("int3, no window", {"context": 61, "sessions": 2}, 2 * 5, 2 * 5),
        ("int3, no window", {}, 5, 13),
        ("int4, no sinks", {}, 4, 9),
        ("k3v2, never packs", {"sessions": 5}, 5 * 5, 0),
    ],
)
def test_what_is_planned_is_allocated(
    name: str, options: dict[str, int], hot_pages: int, packed_pages: int, load: Load, folders: Callable[[str], Path]
) -> None:
    engine = load(name, **options)
    layer = engine.manifest.cache.layers[0]
    hot = hot_pages * HOT_PAGE * layer.kind.hot_dtype.itemsize
    packed = packed_pages * layer.packed_layout.page_bytes if packed_pages else 0
    facts = {"context": POSITIONS, "chunk": 32} | options
    planned = plan_memory(artifact.read(folders(name)).cache, **facts)
    assert engine.allocated_bytes == engine.plan.kv_bytes == planned.kv_bytes == 2 * (hot + packed)
    assert (engine.plan.hot_bytes, engine.plan.packed_bytes) == (2 * hot, 2 * packed)
    room = engine.sequence().room
    feed(engine, engine.sequence(), tokens(300 if room is None else room))
    assert engine.allocated_bytes == planned.kv_bytes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": 0}, "context; expected 1 to the model's 128 positions; got 0"),
        ({"context": 129}, "context; expected 1 to the model's 128 positions; got 129"),
        ({"chunk": 0}, "chunk; expected at least 1 token; got 0"),
        ({"sessions": 0}, "sessions; expected at least 1; got 0"),
    ],
)
def test_what_cannot_be_loaded_is_refused(options: dict[str, int], message: str, load: Load) -> None:
    with pytest.raises(KvedgeError, match=f"^{message}$"):
        load("int3, no window", **options)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "new tokens; expected 1 to 32; got 0"),
        ([1] * 33, "new tokens; expected 1 to 32; got 33"),
        ([1] * 11, "new tokens; expected room for them: 10 left; got 11"),
        ([5, VOCAB], f"token ids; expected 0 to {VOCAB - 1}; got 5 to {VOCAB}"),
        ([5, -1], f"token ids; expected 0 to {VOCAB - 1}; got -1 to 5"),
    ],
)
def test_a_bad_row_spoils_no_other(ids: list[int], message: str, load: Load) -> None:
    engine = load("int3, no window", sessions=2, context=30)
    good, bad = engine.sequence(), engine.sequence()
    feed(engine, bad, tokens(20))
    with pytest.raises(KvedgeError, match=f"^{re.escape(message)}$"):
        engine.step([Row(good, [1]), Row(bad, ids)], [0])
    assert (good.num_tokens, bad.num_tokens) == (0, 20)


# ---- Batches, and several sessions.

HISTORIES, NEW = (0, 45, 130), ((1, 9), (30, 1), (17, 25))
STREAMS = [tokens(length + sum(new), seed) for seed, (length, new) in enumerate(zip(HISTORIES, NEW, strict=True))]


@cache
def alone(engine_of: Load, name: str) -> list[tuple[np.ndarray, int]]:
    """Logits of each of STREAMS by itself, cut as in the batch, and pages read by the two last steps."""
    out = []
    for ids, length, (first, _) in zip(STREAMS, HISTORIES, NEW, strict=True):
        engine, cuts = engine_of(name), cuts_of(length, 32) if length else []
        before = stream_logits(engine, np.array(ids[:length]), cuts)[1] if length else 0
        logits, pages = stream_logits(engine, np.array(ids), [*cuts, length + first, len(ids)])
        out.append((logits[length:], pages - before))
    return out


@pytest.mark.parametrize("order", list(permutations(range(3))))
@BOTH
def test_a_ragged_batch_is_each_row_alone(name: str, order: tuple[int, ...], load: Load) -> None:
    """Two steps, so that what padding may have written would show in the second one."""
    engine, want = load(name, sessions=3), alone(load, name)
    sequences = [engine.sequence() for _ in STREAMS]
    for sequence, ids, length in zip(sequences, STREAMS, HISTORIES, strict=True):
        feed(engine, sequence, ids[:length])
    pages = 0
    for step in (0, 1):
        counts = [new[step] for new in NEW]
        starts = [sequence.num_tokens for sequence in sequences]
        rows = [Row(sequences[i], STREAMS[i][starts[i] : starts[i] + counts[i]]) for i in order]
        result = engine.step(rows, range(max(counts)))
        pages += result.packed_pages_read
        for line, i in enumerate(order):
            expected = want[i][0][starts[i] - HISTORIES[i] :][: counts[i]]
            assert error(result.logits[line, : counts[i]], expected) <= TOLERANCE[name], f"row {i}, step {step}"
    assert pages == sum(count for _, count in want)
    assert (pages > 0) == (name == "int3")


def steps_of(engine: Engine, sequence: Sequence, ids: list[int]) -> Iterator[np.ndarray]:
    """Logits of one step after another."""
    for first in range(0, len(ids), 11):
        part = ids[first : first + 11]
        yield engine.step([Row(sequence, part)], range(len(part))).logits[0].copy()


@BOTH
def test_sessions_do_not_leak_into_each_other(name: str, load: Load) -> None:
    streams = [tokens(200, seed) for seed in (11, 12, 13)]
    want = [list(steps_of(engine, engine.sequence(), ids)) for ids in streams for engine in [load(name)]]
    engine = load(name, sessions=2)
    first, second = engine.sequence(), engine.sequence()
    pairs = zip(steps_of(engine, first, streams[0]), steps_of(engine, second, streams[1]), strict=True)
    for step, (a, b) in enumerate(pairs):
        assert np.array_equal(a, want[0][step]) and np.array_equal(b, want[1][step]), f"step {step}"
    first.clear()
    for step, logits in enumerate(steps_of(engine, engine.sequence(), streams[2])):
        assert np.array_equal(logits, want[2][step]), f"step {step} in pages that were used before"
    more = tokens(10, 14)
    alone = stream_logits(load(name), np.array(streams[1] + more), [*cuts_of(200, 11), 210])[0][200:]
    assert np.array_equal(engine.step([Row(second, more)], range(10)).logits[0], alone)


def test_more_sessions_than_planned(load: Load) -> None:
    engine, other = load("int3"), load("int3")
    with engine.session() as first, other.session() as want:
        second = engine.session()
        first.feed(tokens(100))
        with pytest.raises(MemoryError, match="load with more sessions"):
            second.feed(tokens(10))
        assert second.num_tokens == 0
        for session in (first, want):
            session.clear()
        second.feed(tokens(100))
        want.feed(tokens(100))
        answers = [session.generate([5], max_tokens=9) for session in (second, want)]
        assert [answer.text() for answer in answers] == ["", ""]
        assert answers[0].token_ids == answers[1].token_ids


def test_closed_sessions_give_all_pages_back(load: Load) -> None:
    engine = load("int3")
    for _ in range(4):
        with engine.session() as session:
            session.feed(tokens(150))
            assert session.num_tokens == 150
        assert session.num_tokens == 0


# ---- Rollback.

WRONG = tokens(40, 99)
DETOURS = {
    "one": [(1, 1)],
    "a few": [(5, 5)],
    "slack": [(8, 8)],
    "part of a chunk": [(30, 8)],
    "again and again": [(3, 3), (8, 8), (5, 5)],
    "bit by bit": [(8, 3), (0, 2), (0, 3)],
    "over old ones": [(6, 6), (2, 2), (4, 4)],
}
"""Wrong tokens fed, tokens rolled back; what stays of the wrong ones is part of both streams."""


@pytest.mark.parametrize("detour", DETOURS.values(), ids=list(DETOURS))
@pytest.mark.parametrize("length", [20, 60, 251])
@pytest.mark.parametrize("name", ["fp", "int3", "int3, no window"])
def test_what_is_rolled_back_never_was(name: str, length: int, detour: list[tuple[int, int]], load: Load) -> None:
    length = min(length, 75) if "no window" in name else length
    engine, history, after = load(name), tokens(length), tokens(23, 5)
    sequence, kept = engine.sequence(), list(history)
    feed(engine, sequence, history)
    for wrong, back in detour:
        if wrong:
            engine.step([Row(sequence, WRONG[:wrong])], [0])
        kept = (kept + WRONG[:wrong])[: sequence.num_tokens - back]
        sequence.rollback(back)
    assert sequence.num_tokens == len(kept)
    got = engine.step([Row(sequence, after)], range(len(after))).logits[0]
    ids = np.array(kept + after)
    want = stream_logits(load(name), ids, [*cuts_of(len(kept), 32), len(ids)])[0][len(kept) :]
    assert error(got, want) <= TOLERANCE[name]


def test_too_large_a_rollback_is_refused(load: Load) -> None:
    engine = load("int3")
    session, spy = engine.session(), Spy(engine)
    session.feed(tokens(100))
    for back, allowed in ((9, 8), (5, None), (4, 3), (-1, 3)):
        if allowed is None:
            session.rollback(back)
            continue
        with pytest.raises(KvedgeError, match=f"^rollback; expected 0 to {allowed} tokens; got {back};"):
            session.rollback(back)
    assert session.num_tokens == 95
    session.feed([7])
    want = stream_logits(load("int3"), np.array([*tokens(100)[:95], 7]), [32, 64, 95, 96])[0][-1]
    assert error(spy.logits, want) <= P7_INT3


# ---- Answers.

WORD = 256  # tokens from here on are whole words
MARKS = {"<s>": 509, "<|im_start|>": 510, "<|im_end|>": 511}
END = MARKS["<|im_end|>"]


@cache
def word_tokenizer() -> Tokenizer:
    """One token a byte, then words that no text is encoded to, then special tokens: the whole vocabulary."""
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet()) + [f"w{number}" for number in range(WORD, min(MARKS.values()))]
    tokenizer = Tokenizer(models.BPE(vocab={text: number for number, text in enumerate([*pieces, *MARKS])}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in MARKS])
    return tokenizer


@pytest.fixture
def talk(folders: Callable[[str], Path], tmp_path: Path) -> Load:
    """Loads a copy of an artifact with a tokenizer, and with other end tokens and a chat template if given."""

    def load(name: str = "int3", *, eos_ids: tuple[int, ...] = (END,), template: str | None = None, **options: int) -> Engine:
        folder = Path(shutil.copytree(folders(name), tmp_path / f"copy{len(list(tmp_path.iterdir()))}"))
        word_tokenizer().save(str(folder / artifact.TOKENIZER))
        (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
        if template:
            (folder / "chat_template.jinja").write_text(template)
        files = {path.name: artifact.describe(path) for path in folder.iterdir() if path.name != artifact.MANIFEST}
        old = artifact.read(folder)
        artifact.write(folder, replace(old, model=replace(old.model, eos_ids=eos_ids), files=files))
        return Engine.load(folder, **({"chunk": 64, "threads": 1} | options))

    return load


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes every model say given tokens."""

    def script(*ids: int) -> None:
        said = iter(ids)
        monkeypatch.setattr(Sampler, "choose", lambda *_: next(said))

    return script


def check_state(engine: Engine, spy: Spy, fed: list[int], name: str = "int3") -> None:
    """These tokens were fed, and the newest logits are those of a stream that got them at once."""
    assert spy.fed == fed
    want = stream_logits(engine, np.array(fed), cuts_of(len(fed), engine.plan.chunk))[0][-1]
    assert error(spy.logits, want) <= TOLERANCE[name]


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
    with pytest.raises(KvedgeError, match="prompt; expected at most the 0 tokens left of a context of 60; got 2; export"):
        session.generate([5])


@pytest.mark.parametrize("end", [7, 300, END])
def test_every_end_token_stops(end: int, talk: Load, say: Callable[..., None]) -> None:
    engine = talk(eos_ids=(7, 300, END))
    session, spy = engine.session(), Spy(engine)
    say(400, 401, end, 402)
    answer = session.generate(tokens(50), max_tokens=30)
    assert answer.text() == "w400w401"
    assert (answer.finish_reason, answer.token_ids) == (FinishReason.STOP, [400, 401])
    session.generate([8], max_tokens=1).text()
    check_state(engine, spy, [*tokens(50), 400, 401, 8])


@pytest.mark.parametrize("close", [False, True])
def test_a_reader_may_stop_early(close: bool, talk: Load, say: Callable[..., None]) -> None:
    engine = talk(sessions=2)
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
    check_state(engine, spy, [*tokens(50), *said, *tokens(20, 2), *again.token_ids[:2]])
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
    engine, other = load(name, sessions=2), load(name, sessions=2)
    session, spy, at_once = engine.session(), Spy(engine), other.session()
    first = session.generate(tokens(40), max_tokens=6)
    first.text()
    second = session.generate(tokens(30, 2), max_tokens=6)
    second.text()
    everything = at_once.generate([*tokens(40), *first.token_ids, *tokens(30, 2)], max_tokens=6)
    everything.text()
    assert second.token_ids == everything.token_ids
    assert session.num_tokens == at_once.num_tokens == 81
    check_state(engine, spy, [*tokens(40), *first.token_ids, *tokens(30, 2), *second.token_ids[:5]], name)


def test_feeding_goes_on_after_the_answer(load: Load) -> None:
    engine = load("int3", sessions=2)
    session, spy = engine.session(), Spy(engine)
    answer = session.generate(tokens(40), max_tokens=6)
    answer.text()
    session.feed(tokens(20, 2))
    session.feed([9])
    check_state(engine, spy, [*tokens(40), *answer.token_ids, *tokens(20, 2), 9])


def test_rollback_after_an_answer(load: Load) -> None:
    """Of six tokens, five are in the cache: two of them go, and with them the sixth."""
    engine = load("int3", sessions=2)
    session, spy = engine.session(), Spy(engine)
    answer = session.generate(tokens(40), max_tokens=6)
    answer.text()
    session.rollback(2)
    assert session.num_tokens == 43
    session.generate([9], max_tokens=1).text()
    assert spy.fed == [*tokens(40), *answer.token_ids[:5], 9]
    spy.fed[43:45] = []
    check_state(engine, spy, [*tokens(40), *answer.token_ids[:3], 9])


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
    engine = load("int3, no window", context=100, sessions=2)
    session, spy = engine.session(), Spy(engine)
    answer = session.generate(tokens(20), max_tokens=3)
    answer.text()
    with pytest.raises(KvedgeError, match=message):
        use(session, ids)
    assert session.num_tokens == 22
    session.generate([9], max_tokens=1).text()
    check_state(engine, spy, [*tokens(20), *answer.token_ids, 9], "int3, no window")


def test_numbers_of_tokens_are_checked(load: Load) -> None:
    with pytest.raises(KvedgeError, match="^max tokens; expected 1 or more; got 0$"):
        load("int3").session().generate([5], max_tokens=0)
