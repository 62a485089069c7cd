"""The engine: an artifact in memory with its page pools, from which sessions are made."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvedge.plugins import feeds
from kvedge.runtime.backend import Backend, StepOutput
from kvedge.runtime.backends import Load, open_backend
from kvedge.runtime.limits import step_limits
from kvedge.runtime.pages import PagePool
from kvedge.runtime.saved_pages import SavedPages, put_pages, take_pages
from kvedge.runtime.sequence import Sequence
from kvedge.runtime.table import GroupTables
from kvedge.runtime.text import Text
from kvedge.targets import manifest as artifact
from kvedge.targets.devices import EngineKind
from kvedge.targets.errors import require
from kvedge.targets.manifest import Manifest
from kvedge.targets.plan import MemoryPlan
from kvedge.targets.profiles import StepLimits, limits_plan

if TYPE_CHECKING:
    from kvedge.runtime.session import Session


_MAX_TOKENS = (1 << 31) - 1  # orders are int32 in the graph: 248 days at 100 tokens a second
_INTERRUPTED = "one whose last step was interrupted"
_START_ANEW = "clear the session and feed it again"


@dataclass(frozen=True)
class Row:
    """New token ids of one sequence."""

    sequence: Sequence
    ids: Many[int]


class Engine:
    """A model ready to run. All its memory is allocated when it is loaded."""

    def __init__(self, manifest: Manifest, plan: MemoryPlan, backend: Backend, text: Text) -> None:
        self.manifest, self.plan, self.text = manifest, plan, text
        self._backend = backend
        capacities = [rules.capacity(plan.context, plan.chunk) for rules in manifest.cache.groups]
        self._capacities = capacities
        self._hot_pools = [PagePool(plan.sessions * capacity.hot_pages) for capacity in capacities]
        self._packed_pools = [PagePool(plan.sessions * capacity.packed_pages) for capacity in capacities]
        self._warm_up()

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        context: int | None = None,
        sessions: int | None = None,
        chunk: int | None = None,
        threads: int | None = None,
    ) -> Engine:
        """Load an artifact folder, checking every byte that is used.

        Args:
            folder: what `kvedge export` wrote.
            context: most tokens a session may hold where a layer has no window; None for the model's own limit.
                With a window in every layer there is no limit, and it makes no difference.
            sessions: conversations at the same time; None for one.
            chunk: new tokens that one step takes at most; None for 256.
            threads: None for all cores.

        Where an engine was built from the artifact, None is what it was built for, and nothing else is possible.

        Raises:
            KvedgeError: not an artifact, damaged, of a newer format, a context that the model cannot have, or no
                engine for this machine.
        """
        path = Path(folder)
        manifest = artifact.load_to_run(path)
        limits = step_limits(manifest, context=context, sessions=sessions, chunk=chunk)
        plan = limits_plan(manifest.cache, limits)
        load = Load(folder=path, manifest=manifest, plan=plan, limits=limits, threads=threads)
        return cls(manifest, plan, open_backend(load), Text.load(path))

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the page pools as allocated; equal to `planned_bytes`."""
        return self._backend.allocated_bytes

    @property
    def planned_bytes(self) -> int:
        """Bytes of the page pools by the plan, as often as the engine keeps them."""
        return self.manifest.engine.pools * self.plan.kv_bytes

    @property
    def most_rows(self) -> int:
        """Tokens of a step that can have logits, at most: on a GPU memory for them is kept."""
        plan = self.plan
        limits = StepLimits(context=plan.context, chunk=plan.chunk, sessions=plan.sessions)
        return plan.chunk if self.manifest.engine is EngineKind.ORT_CPU else limits.rows

    def session(self) -> Session:
        """A new conversation."""
        from kvedge.runtime.session import Session

        return Session(self)

    def restore(self, path: str | Path) -> Session:
        """The conversation that `Session.save` wrote to a file, in this process or another.

        Chunk, context, threads and sessions of the engine may be others than when it was saved.

        Raises:
            KvedgeError: no such file, a damaged one, one of another artifact, or more tokens than the context.
            MemoryError: as many sessions as the engine has room for are in use.
        """
        from kvedge.runtime import saved
        from kvedge.runtime.session import Session

        return Session.restored(self, saved.read(Path(path), self.manifest))

    def take_pages(self, sequence: Sequence) -> SavedPages:
        """Copies of all that a sequence has in the cache.

        Raises:
            KvedgeError: its last step was interrupted, and what it needs is lost.
        """
        self._check_whole(sequence)
        return take_pages(self.manifest.cache, sequence, self._backend)

    def put_pages(self, sequence: Sequence, pages: SavedPages) -> None:
        """Fill an empty sequence with what was taken from another one.

        Raises:
            KvedgeError: more tokens than it may hold.
        """
        fits = sequence.limit is None or pages.num_tokens <= sequence.limit
        fix = "load with a larger context"
        require(fits, "a saved session", expected=f"at most {sequence.limit} tokens", got=pages.num_tokens, fix=fix)
        put_pages(self.manifest.cache, sequence, self._backend, pages)

    def sequence(self) -> Sequence:
        """An empty sequence, for those who feed tokens themselves."""
        cache = self.manifest.cache
        groups = [
            GroupTables(rules, capacity, hot, packed)
            for rules, capacity, hot, packed in zip(
                cache.groups, self._capacities, self._hot_pools, self._packed_pools, strict=True
            )
        ]
        return Sequence(groups, None if cache.is_endless else self.plan.context)

    def step(self, rows: Many[Row], logits_index: Many[int]) -> StepOutput:
        """Feed new tokens of several sequences, at most `plan.chunk` each.

        Args:
            rows: sequences with their new token ids.
            logits_index: which of the new tokens get logits, the same for all rows.

        Raises:
            KvedgeError: an empty row, more tokens than a step or a sequence takes, or an unknown id.
        """
        self._check_step(rows, logits_index)
        for row in rows:
            row.sequence.reserve(len(row.ids))
        arrays = feeds.build_feeds(self.manifest.cache, [_feed_row(row) for row in rows], logits_index)
        for row in rows:
            row.sequence.begin(len(row.ids))
        self._backend.bind(arrays)
        output = self._backend.run()
        self._backend.swap()
        for row in rows:
            row.sequence.advance(len(row.ids))
        return output

    def _check_step(self, rows: Many[Row], logits_index: Many[int]) -> None:
        for row in rows:
            self._check_row(row)
        apart = 0 < len(rows) == len({id(row.sequence) for row in rows})
        require(apart, "rows", expected="at least one, every sequence once", got=f"{len(rows)} rows")
        longest = max(len(row.ids) for row in rows)
        fine = bool(logits_index) and min(logits_index) >= 0 and max(logits_index) < longest
        require(fine, "logits_index", expected=f"new tokens 0 to {longest - 1}", got=list(logits_index))
        few = len(logits_index) <= self.most_rows
        require(few, "logits_index", expected=f"at most {self.most_rows} tokens", got=len(logits_index))

    def check_ids(self, ids: Many[int]) -> None:
        """Check token ids against the vocabulary.

        Raises:
            KvedgeError: one is unknown.
        """
        low, high, vocab = min(ids, default=0), max(ids, default=0), self.manifest.model.vocab_size
        require(low >= 0 and high < vocab, "token ids", expected=f"0 to {vocab - 1}", got=f"{low} to {high}")

    def _check_row(self, row: Row) -> None:
        num_new, room = len(row.ids), row.sequence.room
        self._check_whole(row.sequence)
        end = row.sequence.num_tokens + num_new
        require(end <= _MAX_TOKENS, "a stream", expected=f"at most {_MAX_TOKENS} tokens", got=end, fix=_START_ANEW)
        require(0 < num_new <= self.plan.chunk, "new tokens", expected=f"1 to {self.plan.chunk}", got=num_new)
        require(room is None or num_new <= room, "new tokens", expected=f"room for them: {room} left", got=num_new)
        self.check_ids(row.ids)

    def _check_whole(self, sequence: Sequence) -> None:
        what = "the cache of this session"
        require(sequence.is_whole, what, expected="a whole one", got=_INTERRUPTED, fix=_START_ANEW)

    def _warm_up(self) -> None:
        """Run the largest step once, and decoding of any number of sessions: what is allocated or recorded, is now."""
        sequences = [self.sequence() for _ in range(self.plan.sessions)]
        room = sequences[0].room
        most = self.plan.chunk if room is None else min(self.plan.chunk, room)
        self._try(sequences, most)
        for batch in range(1, self.plan.sessions + 1):
            for _ in range(self.manifest.engine.pools):
                self._try(sequences[:batch], 1)

    def _try(self, sequences: Many[Sequence], num_new: int) -> None:
        self.step([Row(sequence, [0] * num_new) for sequence in sequences], [num_new - 1])
        for sequence in sequences:
            sequence.clear()


def _feed_row(row: Row) -> feeds.Row:
    tables = row.sequence.groups
    return feeds.Row(
        ids=row.ids,
        context=row.sequence.num_tokens,
        hot=[group.hot for group in tables],
        packed=[group.packed for group in tables],
    )
