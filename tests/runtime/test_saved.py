"""Sessions as files: they go on to the bit, they fit their artifact only, and damage is noticed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from tiny_engines import END, SETTINGS, Artifacts, Load, Spy, feed, tokens, word_tokenizer

from kvedge.runtime.engine import Engine, Row
from kvedge.runtime.sample import Sampler
from kvedge.runtime.session import Session
from kvedge.targets.errors import KvedgeError
from kvedge.targets.manifest import FileInfo, fingerprint

LENGTH = 120
CHAT = (
    "{% for turn in messages %}<|im_start|>{{ turn.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>{% endif %}"
)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    return Artifacts(tmp_path_factory.mktemp("artifacts"))


@pytest.fixture(scope="module")
def load(artifacts: Artifacts) -> Load:
    return artifacts.load


@pytest.fixture(scope="module")
def saved(load: Load, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A session of int3, past its window."""
    session, path = load("int3").session(), tmp_path_factory.mktemp("saved") / "talk.kv"
    session.feed(tokens(LENGTH))
    session.save(path)
    return path


def steps(engine: Engine, session: Session, ids: list[int]) -> np.ndarray:
    """Logits after each of some tokens, fed one by one."""
    spy, out = Spy(engine), []
    for token in ids:
        session.feed([token])
        out.append(spy.logits)
    return np.stack(out)


@pytest.mark.parametrize("length", [2, 9, 60, 100])
@pytest.mark.parametrize("name", SETTINGS)
def test_it_goes_on_to_the_bit(name: str, length: int, load: Load, tmp_path: Path) -> None:
    """Also in engines with other chunks and room for more sessions, whose pages lie elsewhere."""
    engine, more = load(name), tokens(28, 2)
    session = engine.session()
    session.feed(tokens(length))
    session.save(tmp_path / "talk.kv")
    want = steps(engine, session, more)
    for chunk in (1, 32, 90):
        other = load(name, chunk=chunk, sessions=2)
        busy = other.session()
        busy.feed(tokens(50, 3))
        restored = other.restore(tmp_path / "talk.kv")
        assert restored.num_tokens == length
        assert np.array_equal(steps(other, restored, more), want)
        busy.close()
        restored.close()


@pytest.mark.parametrize("name", ["fp", "int3"])
def test_rolling_back_after_restoring(name: str, load: Load, tmp_path: Path) -> None:
    """As far as before: the slack counts from the furthest token that was ever written."""
    engine, path = load(name), tmp_path / "talk.kv"
    session = engine.session()
    session.feed(tokens(LENGTH))
    want = steps(engine, session, tokens(3, 4))
    session.rollback(3)
    session.save(path)
    restored = load(name).restore(path)
    with pytest.raises(KvedgeError, match="^rollback; expected 0 to 5 tokens; got 6"):
        restored.rollback(6)
    restored.rollback(5)
    restored.feed(tokens(LENGTH)[-5:])
    assert np.array_equal(steps(restored._engine, restored, tokens(3, 4)), want)


def test_a_saved_session_goes_on(load: Load, tmp_path: Path) -> None:
    engine = load("int3")
    session, spy = engine.session(), Spy(engine)
    session.feed(tokens(50))
    session.save(tmp_path / "talk.kv")
    session.feed([9])
    spy.check(load("int3"), [*tokens(50), 9])


def test_the_file_is_as_large_as_the_pages_in_use(load: Load, tmp_path: Path) -> None:
    """Not as the stream, and not as a context that is mostly empty."""
    sizes = []
    for length in (LENGTH, 4 * LENGTH):
        session = load("int3").session()
        session.feed(tokens(length))
        session.save(tmp_path / f"{length}.kv")
        sizes.append((tmp_path / f"{length}.kv").stat().st_size)
    assert abs(sizes[1] - sizes[0]) < 0.1 * sizes[0]
    assert max(sizes) < load("int3").allocated_bytes + 8000
    session = load("int3, no window").session()
    session.feed(tokens(10))
    session.save(tmp_path / "short.kv")
    assert (tmp_path / "short.kv").stat().st_size < 0.3 * load("int3, no window").allocated_bytes


def test_an_answer_in_the_middle(load: Load, tmp_path: Path) -> None:
    """The token that was said and not yet fed, and what a penalty looks at, are in the file."""
    engine = load("int3")
    session = engine.session()
    answer = session.generate(tokens(40), max_tokens=9)
    answer.text()
    session.save(tmp_path / "talk.kv")
    other = load("int3")
    restored, spy = other.restore(tmp_path / "talk.kv"), Spy(other)
    assert list(restored._recent) == list(session._recent)
    restored.generate([9], max_tokens=1).text()
    assert spy.fed == [answer.token_ids[-1], 9]


def test_a_chat_goes_on(artifacts: Artifacts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    encode = word_tokenizer().encode
    said = iter([*encode("Hello").ids, END, *encode("yes").ids, END])
    monkeypatch.setattr(Sampler, "choose", lambda *_: next(said))
    folder = artifacts.copy("int3", template=CHAT)
    session = Engine.load(folder, threads=1).session()
    session.chat("Hi").text()
    session.save(tmp_path / "talk.kv")
    engine = Engine.load(folder, threads=1)
    restored, spy = engine.restore(tmp_path / "talk.kv"), Spy(engine)
    assert restored.chat("And?").text() == "yes"
    whole = "<|im_start|>Hi<|im_end|><|im_start|>Hello<|im_end|><|im_start|>And?<|im_end|><|im_start|>yes"
    assert restored.num_tokens == len(encode(whole).ids)
    assert spy.fed == encode("<|im_end|><|im_start|>And?<|im_end|><|im_start|>yes").ids


def test_it_fits_its_artifact_only(saved: Path, artifacts: Artifacts, load: Load) -> None:
    for name, difference in {
        "fp": "kv; expected fp; got int3",
        "int3, no window": "window; expected none; got 37",
        "int4, no sinks": "kv; expected int4; got int3",
    }.items():
        with pytest.raises(KvedgeError, match=f"session file .*: {difference}; load the artifact"):
            load(name).restore(saved)


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data"])
def test_the_fingerprint_knows_graph_and_weights(name: str, load: Load) -> None:
    """And not the tokenizer's files: other words mean the same tokens."""
    manifest = load("int3").manifest
    other = {**manifest.files, name: FileInfo(bytes=1, sha256="0" * 64)}
    assert fingerprint(replace(manifest, files=other)) != fingerprint(manifest)
    words = {**manifest.files, "chat_template.jinja": FileInfo(bytes=1, sha256="0" * 64)}
    assert fingerprint(replace(manifest, files=words)) == fingerprint(manifest)


def test_token_ids_may_be_numpy_s(load: Load, tmp_path: Path) -> None:
    engine = load("int3")
    session = engine.session()
    session.feed(np.arange(5, 25))
    session.generate(np.arange(5, 25), max_tokens=2).text()
    session.save(tmp_path / "talk.kv")
    assert engine.session() and load("int3").restore(tmp_path / "talk.kv").num_tokens == session.num_tokens


def test_a_link_stays_one(load: Load, tmp_path: Path) -> None:
    session = load("int3").session()
    session.feed([5])
    (tmp_path / "link.kv").symlink_to(tmp_path / "talk.kv")
    session.save(tmp_path / "link.kv")
    assert (tmp_path / "link.kv").is_symlink() and (tmp_path / "talk.kv").is_file()


def test_other_weights_are_another_artifact(saved: Path, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load("int3")
    monkeypatch.setattr("kvedge.targets.manifest.fingerprint", lambda _: "0" * 64)
    with pytest.raises(KvedgeError, match="expected the one that is loaded; got another export of the same model"):
        engine.restore(saved)


def test_a_context_that_is_too_small(load: Load, tmp_path: Path) -> None:
    session = load("int3, no window").session()
    session.feed(tokens(100))
    session.save(tmp_path / "talk.kv")
    small = load("int3, no window", context=99)
    with pytest.raises(KvedgeError, match="expected at most 99 tokens; got 100; load with a larger context"):
        small.restore(tmp_path / "talk.kv")
    assert load("int3, no window", context=100).restore(tmp_path / "talk.kv").num_tokens == 100


def test_damage_is_noticed_and_harms_nobody(saved: Path, load: Load, tmp_path: Path) -> None:
    """Any byte flipped, any end missing. White space in the header is the one thing that may change."""
    engine, whole, broken = load("int3"), saved.read_bytes(), tmp_path / "broken.kv"
    fresh = np.array(steps(engine, engine.session(), tokens(5, 6)))
    rng = np.random.default_rng(0)
    places = [*range(12), *rng.integers(0, len(whole), 60).tolist(), len(whole) - 1]
    cases = [whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :] for at in places if whole[at] != ord(" ")]
    cases += [whole[:length] for length in (0, 1, 7, 8, 100, len(whole) // 2, len(whole) - 1)] + [whole + b"\0"]
    for case in cases:
        broken.write_bytes(case)
        with pytest.raises(KvedgeError, match="damaged|format"):
            engine.restore(broken)
    assert np.array_equal(steps(engine, engine.session(), tokens(5, 6)), fresh)
    assert engine.restore(saved).num_tokens == LENGTH


def test_what_is_no_session_file(load: Load, tmp_path: Path) -> None:
    with pytest.raises(KvedgeError, match="expected a file; got none of that name"):
        load("int3").restore(tmp_path / "none.kv")
    with pytest.raises(KvedgeError, match="expected a file"):
        load("int3").restore(tmp_path)


def test_a_newer_file_is_refused(saved: Path, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load("int3")
    monkeypatch.setattr("kvedge.runtime.saved.SAVED_VERSION", 0)
    with pytest.raises(KvedgeError, match="expected format 0 or older; got 1; update kvedge"):
        engine.restore(saved)


def test_what_cannot_be_written_leaves_the_old_file(saved: Path, load: Load, tmp_path: Path) -> None:
    session = load("int3").session()
    session.feed(tokens(20))
    with pytest.raises(KvedgeError, match="expected to write it"):
        session.save(tmp_path / "no folder" / "talk.kv")
    folder = tmp_path / "talk.kv"
    folder.mkdir()
    with pytest.raises(KvedgeError, match="expected to write it"):
        session.save(folder)
    (tmp_path / "file").touch()
    with pytest.raises(KvedgeError, match="expected to write it"):
        session.save(tmp_path / "file" / "talk.kv")
    (tmp_path / "file").unlink()
    assert list(tmp_path.iterdir()) == [folder], "nothing half-written is left"


def test_an_interrupted_session_is_not_saved(load: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine = load("int3")
    sequence = engine.sequence()
    feed(engine, sequence, tokens(60))

    def stop() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine._backend, "run", stop)
    with pytest.raises(KeyboardInterrupt):
        engine.step([Row(sequence, tokens(30))], [0])
    with pytest.raises(KvedgeError, match="interrupted"):
        engine.take_pages(sequence)


def test_the_file_is_an_ordinary_safetensors_file(saved: Path, load: Load) -> None:
    """Whoever opens it finds tokens and pages by layer."""
    cache = load("int3").manifest.cache
    with safe_open(saved, "numpy") as stored:
        body = json.loads(stored.metadata()["kvedge"])
        assert body["num_tokens"] == LENGTH and body["artifact"]["kv"] == "int3"
        sinks, ring, packed = ([*range(*part)] for part in body["held"][0])
        for layer in cache.layers:
            hot = stored.get_tensor(f"hot.{layer.index}")
            assert hot.shape == (2, layer.kv_heads, len(sinks) + len(ring), layer.head_dim)
            assert stored.get_tensor(f"packed.{layer.index}").shape == (len(packed), layer.packed_layout.page_words)
