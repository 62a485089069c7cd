"""`kvedge chat`: piped lines, commands, and a terminal with Ctrl-C; and the options of answers behind it."""

from __future__ import annotations

import itertools
import json
import os
import pty
import re
import select
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from commands import Command, check_error, hear_interrupts

from kvedge.runtime.answer import FinishReason
from kvedge.runtime.engine import Engine
from kvedge.runtime.sample import Sampler, Sampling
from kvedge.runtime.session import Session
from kvedge.runtime.session_option import keeping
from kvedge.targets import manifest as artifact
from kvedge.targets.errors import KvedgeError

TURNS = ("Tell me about sinks and windows.", "And about pages, at some length?", "Go on.")


@pytest.fixture(scope="module")
def engine(tiny) -> Engine:
    return Engine.load(tiny.int3, threads=1)


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with engine.session() as made:
        yield made


def lines(*turns: str) -> bytes:
    return "".join(f"{turn}\n" for turn in turns).encode()


# ---- piped


def test_every_line_is_a_turn_of_one_conversation(kvedge: Command, tiny, session: Session) -> None:
    want = [session.chat(turn, max_tokens=20).text() for turn in TURNS]
    options = ("--max-tokens", 20, "--threads", 1)
    result = kvedge("chat", tiny.int3, *options, stdin=lines(*TURNS[:2], "", "  ", TURNS[2]))
    assert result.code == 0
    assert result.out == "".join(f"{text}\n" for text in want)
    assert result.err == "(cut after 20 tokens: --max-tokens allows more)\n" * 3
    said = kvedge("chat", tiny.int3, *options, "--json", stdin=lines(*TURNS))
    records = [json.loads(line) for line in said.out.splitlines()]
    assert [record["text"] for record in records] == want
    assert said.err == ""
    assert records[2]["usage"]["packed_pages_read"] > 0
    assert records[2]["usage"]["prompt_tokens"] < records[1]["usage"]["prompt_tokens"], "only what is new is fed"


def test_commands_between_turns(kvedge: Command, tiny) -> None:
    options = ("--max-tokens", 5, "--threads", 1)
    twice = kvedge("chat", tiny.int3, *options, stdin=lines(TURNS[0], "/clear", TURNS[0], "/exit", TURNS[1]))
    first, second = twice.out[: len(twice.out) // 2], twice.out[len(twice.out) // 2 :]
    assert first == second, "a new conversation begins as the first one did, and nothing is said after /exit"
    assert "(a new conversation)" in twice.err
    stats = kvedge(
        "chat", tiny.int3, *options, stdin=lines("/stats", TURNS[0], "/stats", "/help", "/clear", "/stats")
    ).err
    assert stats.startswith("nothing was said yet\n") and stats.endswith("nothing was said yet\n")
    assert re.search(r"prompt \d+ tokens, .*\nconversation \d+ tokens, of which it sees 0-\d+", stats)
    assert "/clear begins a new conversation" in stats


def test_a_conversation_goes_on_in_a_file(kvedge: Command, tiny, tmp_path: Path) -> None:
    """Whatever command goes on with it; the tokens that were said are fed once."""
    options, talk = ("--max-tokens", 20, "--threads", 1), tmp_path / "talk.kv"
    want = kvedge("chat", tiny.int3, *options, stdin=lines(*TURNS)).out
    got = [
        kvedge("chat", tiny.int3, *options, "--session", talk, stdin=lines(TURNS[0])),
        kvedge("run", tiny.int3, *options, "--session", talk, TURNS[1]),
        kvedge("chat", tiny.int3, *options, "--session", talk, stdin=lines(TURNS[2])),
    ]
    assert [each.code for each in got] == [0, 0, 0]
    assert "".join(each.out for each in got) == want
    assert "goes on with" not in got[0].err
    assert all(f"goes on with {talk}: " in each.err for each in got[1:])
    assert [path.name for path in tmp_path.iterdir()] == ["talk.kv"]


def test_every_turn_is_kept_at_once(kvedge: Command, tiny, tmp_path: Path) -> None:
    """Whatever happens to the next."""
    talk, options = tmp_path / "talk.kv", ("--max-tokens", 5, "--threads", 1)
    cut = kvedge("chat", tiny.int3, *options, "--session", talk, stdin=lines(TURNS[0]) + b"\xff\n")
    assert cut.code == 2 and "UTF-8" in cut.err.splitlines()[-1]
    whole = kvedge("chat", tiny.int3, *options, stdin=lines(*TURNS[:2])).out
    assert whole.endswith(kvedge("chat", tiny.int3, *options, "--session", talk, stdin=lines(TURNS[1])).out)


def test_an_answer_that_is_stopped_is_kept(session: Session, tmp_path: Path) -> None:
    session.feed([5, 6, 7])
    with pytest.raises(KeyboardInterrupt), keeping(session, tmp_path / "talk.kv"):
        raise KeyboardInterrupt
    assert session._engine.restore(tmp_path / "talk.kv").num_tokens == 3
    with pytest.raises(ValueError, match="no"), keeping(session, tmp_path / "other.kv"):
        raise ValueError("no")
    assert [path.name for path in tmp_path.iterdir()] == ["talk.kv"]


def test_a_session_file_that_does_not_fit(kvedge: Command, tiny, tmp_path: Path) -> None:
    """It is refused in front of the answer, and stays as it was."""
    talk = tmp_path / "talk.kv"
    kvedge("run", tiny.int3, "--session", talk, "Hi", "--max-tokens", 5)
    before = talk.read_bytes()
    check_error(kvedge("run", tiny.fp, "--session", talk, "Hi"), "kv; expected fp; got int3", "start a new session")
    check_error(kvedge("chat", tiny.fp, "--session", talk, stdin=b"hi\n"), "kv; expected fp; got int3")
    assert talk.read_bytes() == before
    talk.write_bytes(before[:-1])
    check_error(kvedge("run", tiny.int3, "--session", talk, "Hi"), "damaged")
    check_error(kvedge("run", tiny.int3, "--session", tmp_path, "Hi"), "expected a file", "got a folder")
    check_error(kvedge("chat", tiny.int3, "--session", tmp_path / "no" / "x", stdin=b"hi\n"), "no such folder")


def test_a_path_is_no_command(kvedge: Command, tiny) -> None:
    result = kvedge("chat", tiny.int3, "--max-tokens", 5, stdin=lines("/usr/bin holds what?", "/ is what?"))
    assert result.err.count("cut after") == 2


def test_a_full_context_is_said(kvedge: Command, tiny) -> None:
    result = kvedge("chat", tiny.whole, "--ctx", 80, "--json", stdin=lines(TURNS[0]))
    assert json.loads(result.out)["finish_reason"] == "length"
    result = kvedge("chat", tiny.whole, "--ctx", 80, stdin=lines(TURNS[0], TURNS[1]))
    assert result.code == 2
    assert "(the context is full: /clear begins a new conversation)" in result.err
    assert "0 tokens left" in result.err.splitlines()[-1]


def test_a_natural_end_is_not_mentioned(kvedge: Command, tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sampler, "choose", lambda *_: 2)
    result = kvedge("chat", tiny.int3, stdin=lines("hi"))
    assert (result.code, result.out, result.err) == (0, "\n", "")


def test_mistakes(kvedge: Command, tiny, tmp_path: Path) -> None:
    check_error(kvedge("chat", tmp_path), "manifest.json")
    check_error(kvedge("chat", tiny.int3, "--min-p", 2, stdin=b"hi\n"), "min-p", "got 2.0")
    check_error(kvedge("chat", tiny.int3, "--stop", "", stdin=b"hi\n"), "stop string")
    check_error(kvedge("chat", tiny.int3, stdin=b"\xff\n"), "UTF-8")
    check_error(kvedge("chat", tiny.whole, "--ctx", 20, stdin=lines("many words " * 50)), "a context of 20")
    bare = shutil.copytree(tiny.int3, tmp_path / "bare")
    (bare / "chat_template.jinja").unlink()
    old = artifact.read(bare)
    artifact.write(bare, replace(old, files={k: v for k, v in old.files.items() if k != "chat_template.jinja"}))
    check_error(kvedge("chat", bare, stdin=b"hi\n"), "no chat format", "kvedge run DIR --raw")


# ---- on a terminal


class Terminal:
    """`kvedge chat` on a terminal of its own."""

    def __init__(self, *arguments: object) -> None:
        self.seen = ""
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            hear_interrupts()
            command = [sys.executable, "-m", "kvedge.runtime.cli", "chat", *map(str, arguments)]
            os.execve(sys.executable, command, os.environ | {"TERM": "dumb"})

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def interrupt_prompt(self, typed: str = "") -> None:
        """Press Ctrl-C until the program notices: Python forgets it while readline handles a key."""
        self.wait_for(typed)
        for _ in range(5):
            time.sleep(0.5)
            self.type("\x03")
            if self._read(5):
                return

    def wait_for(self, pattern: str, seconds: float = 60) -> str:
        """What was printed since the last call, up to the pattern."""
        end = time.monotonic() + seconds
        while not (match := re.search(pattern, self.seen)):
            assert time.monotonic() < end and self._read(end - time.monotonic()), f"no {pattern!r} in {self.seen!r}"
        found, self.seen = self.seen[: match.end()], self.seen[match.end() :]
        return found

    def exit_code(self) -> int:
        while self._read(60):
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _read(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], max(seconds, 0))[0]:
            return False
        try:
            got = os.read(self._master, 4096)
        except OSError:  # how Linux says that the other side is closed
            return False
        self.seen += got.decode(errors="replace")
        return bool(got)


def test_ctrl_c_stops_the_answer_and_not_the_program(tiny) -> None:
    terminal = Terminal(tiny.int3, "--max-tokens", 1_000_000, "--threads", 1)
    assert "KV cache" in terminal.wait_for("> ")
    terminal.type("Tell me everything.\r")
    terminal.wait_for(r"Tell me everything\.\r\n")
    terminal.wait_for("[a-z]{2}")
    terminal.type("\x03")
    assert "(stopped)" in terminal.wait_for("> $")
    terminal.type("/stats\r")
    assert "finish: cancelled" in terminal.wait_for("> $"), "the conversation is still there"
    terminal.type("half a line")
    terminal.interrupt_prompt("half a line")
    assert "Ctrl-C again" in terminal.wait_for("> $")
    terminal.type("/clear\r")
    assert "a new conversation" in terminal.wait_for("> $")
    terminal.interrupt_prompt()
    assert "Ctrl-C again" in terminal.wait_for("> $"), "a line in between starts the count anew"
    terminal.interrupt_prompt()
    assert terminal.exit_code() == 0


@pytest.mark.parametrize("leave", ["/exit\r", "\x04"])
def test_leaving(leave: str, tiny) -> None:
    terminal = Terminal(tiny.whole, "--ctx", 60, "--threads", 1)
    terminal.wait_for("> ")
    terminal.type("many words " * 20 + "\r")
    assert "error: prompt" in terminal.wait_for("> $"), "a mistake does not end the program"
    terminal.type(leave)
    assert terminal.exit_code() == 0
    assert "Traceback" not in terminal.seen


# ---- what the options do in a session


def test_a_cancelled_answer_ends_at_its_next_step(session: Session) -> None:
    answer = session.chat(TURNS[0], max_tokens=500)
    for number, _ in enumerate(answer):
        if number == 3:
            answer.cancel()
    assert answer.finish_reason is FinishReason.CANCELLED
    assert 4 <= len(answer.token_ids) < 40
    before = session.num_tokens
    again = session.chat(TURNS[1], max_tokens=5)
    again.text()
    assert again.finish_reason is FinishReason.MAX_TOKENS
    assert session.num_tokens > before, "the conversation goes on"


def test_a_turn_cancelled_in_its_prompt_never_happened(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine.session() as session:
        session.chat(TURNS[0], max_tokens=5).text()
        want = session.chat(TURNS[1], max_tokens=20).text()
    with engine.session() as session:
        session.chat(TURNS[0], max_tokens=5).text()
        answer = session.chat("many words " * 200, max_tokens=5)
        step = Engine.step

        def cancelling(self: Engine, *arguments: object) -> object:
            answer.cancel()
            return step(self, *arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(Engine, "step", cancelling)
        assert answer.text() == "" and answer.finish_reason is FinishReason.CANCELLED
        monkeypatch.setattr(Engine, "step", step)
        assert session.chat(TURNS[1], max_tokens=20).text() == want


@pytest.fixture
def say(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    """Makes every model say a text, again and again; the number of its tokens."""

    def script(text: str) -> int:
        ids = engine.text.encode_part(text)
        said = itertools.cycle(ids)
        monkeypatch.setattr(Sampler, "choose", lambda *_: next(said))
        return len(ids)

    return script


STORY = "One fable, two fables, three."


@pytest.mark.parametrize(
    ("stop", "want"), [("two", "One fable, "), (", t", "One fable"), ("On", ""), ("fables, ", "One fable, two ")]
)
def test_a_stop_string_ends_an_answer(
    stop: str, want: str, kvedge: Command, tiny, session: Session, say: Callable[[str], int]
) -> None:
    say(STORY)
    answer = session.chat(TURNS[0], max_tokens=40, stop=(stop, "never to come"))
    assert "".join(answer) == want
    assert answer.finish_reason is FinishReason.STOP
    say(STORY)
    result = kvedge("run", tiny.int3, TURNS[0], "--stop", "nope", "--stop", stop, "--json").json
    assert (result["text"], result["finish_reason"]) == (want, "stop")


def test_held_back_text_comes_at_the_end(session: Session, say: Callable[[str], int]) -> None:
    length = say(STORY)
    answer = session.chat(TURNS[0], max_tokens=length, stop=("three. Four",))
    *pieces, last = answer
    assert last.endswith("three.") and "".join([*pieces, last]) == STORY
    assert answer.finish_reason is FinishReason.MAX_TOKENS
    assert session.chat(TURNS[1], max_tokens=length, stop=("three.",)).text() == STORY.removesuffix("three.")


def test_held_back_text_comes_before_an_end_token(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = iter([*engine.text.encode_part(STORY), 2])
    monkeypatch.setattr(Sampler, "choose", lambda *_: next(said))
    answer = session.chat(TURNS[0], max_tokens=40, stop=("three. Four",))
    assert (answer.text(), answer.finish_reason) == (STORY, FinishReason.STOP)


def test_stop_strings_are_checked(session: Session) -> None:
    for stop in (("",), "END"):
        with pytest.raises(KvedgeError, match="^stop string"):
            session.generate("text", stop=stop)  # type: ignore[arg-type]


def test_a_penalty_sees_the_newest_tokens_of_the_cache(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []

    def choose(_: Sampler, __: object, recent: list[int]) -> int:
        seen.append(list(recent))
        return 300 + len(seen)

    monkeypatch.setattr(Sampler, "choose", choose)
    session.generate(list(range(10, 30)), max_tokens=3).text()
    assert seen == [list(range(10, 30)), [*range(10, 30), 301], [*range(10, 30), 301, 302]]
    session.rollback(2)
    session.generate([40], max_tokens=1).text()
    assert seen[-1] == [*range(10, 30), 40]
    session.feed([5] * 3000)
    session.generate([40], max_tokens=1).text()
    assert 1024 <= len(seen[-1]) <= 1100, "and no more than it may look at"
    session.clear()
    session.generate([40], max_tokens=1).text()
    assert seen[-1] == [40]


def test_a_penalty_changes_what_is_said(kvedge: Command, tiny, session: Session) -> None:
    sampling = Sampling(repeat_penalty=3.0, repeat_last=1024)
    answer = session.chat(TURNS[0], max_tokens=40, sampling=sampling)
    want = answer.text()
    assert len(set(answer.token_ids)) > 35
    options = ("--max-tokens", 40, "--repeat-penalty", 3, "--repeat-last", 1024, "--threads", 1)
    assert kvedge("run", tiny.int3, TURNS[0], *options).out == want + "\n"


def test_top_k_and_min_p_are_handed_on(kvedge: Command, tiny) -> None:
    options = ("--max-tokens", 20, "--threads", 1)
    greedy = kvedge("run", tiny.int3, TURNS[0], *options).out
    hot = (*options, "--temperature", 5, "--seed", 1)
    assert kvedge("run", tiny.int3, TURNS[0], *hot).out != greedy
    assert kvedge("run", tiny.int3, TURNS[0], *hot, "--top-k", 1).out == greedy
    assert kvedge("run", tiny.int3, TURNS[0], *hot, "--min-p", 1).out == greedy
