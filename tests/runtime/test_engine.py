"""The engine on tiny models: memory, limits, ragged batches, several sessions, rollback."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from itertools import permutations

import numpy as np
import pytest
from tiny_engines import P7_INT3, POSITIONS, TOLERANCE, Artifacts, Load, Spy, cuts_of, error, feed, tokens
from tiny_models import VOCAB, stream_logits

from kvedge.runtime.engine import Engine, Row
from kvedge.runtime.sequence import Sequence
from kvedge.targets import manifest
from kvedge.targets.errors import KvedgeError
from kvedge.targets.plan import plan_memory

BOTH = pytest.mark.parametrize("name", ["fp", "int3"])


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    return Artifacts(tmp_path_factory.mktemp("artifacts"))


@pytest.fixture(scope="module")
def load(artifacts: Artifacts) -> Load:
    return artifacts.load


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
    name: str, options: dict[str, int], hot_pages: int, packed_pages: int, load: Load, artifacts: Artifacts
) -> None:
    engine = load(name, **options)
    layer = engine.manifest.cache.layers[0]
    hot = hot_pages * HOT_PAGE * layer.kind.hot_dtype.itemsize
    packed = packed_pages * layer.packed_layout.page_bytes if packed_pages else 0
    facts = {"context": POSITIONS, "chunk": 32} | options
    planned = plan_memory(manifest.read(artifacts.folder(name)).cache, **facts)
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
        ({"chunk": 0}, "chunk; expected at least 1; got 0"),
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
STREAMS = [tokens(length + sum(NEW[row]), row) for row, length in enumerate(HISTORIES)]


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
            got = result.logits[line, : counts[i]]
            assert error(got, expected) <= TOLERANCE[name], f"row {i}, step {step}"
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


def test_an_interrupted_step_is_noticed(load: Load) -> None:
    """Tokens beyond the slack may have been written without being counted: such a cache is refused until cleared."""
    engine = load("int3")
    sequence = engine.sequence()
    engine.step([Row(sequence, tokens(30))], [29])
    sequence.begin(engine.plan.chunk)
    with pytest.raises(KvedgeError, match="last step was interrupted"):
        engine.step([Row(sequence, [5])], [0])
    sequence.clear()
    engine.step([Row(sequence, [5])], [0])
    sequence.begin(sequence.slack)
    engine.step([Row(sequence, [6])], [0])


def test_without_onnxruntime(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a Python that it is too new for: one line, not a trace."""
    monkeypatch.delitem(sys.modules, "kvedge.runtime.ort_cpu", raising=False)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(KvedgeError, match="expected the package onnxruntime; got .*Python 3.11 or newer"):
        Engine.load(tiny.int3)
