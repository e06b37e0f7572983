"""The worker half: writes guesses where they are granted, and says how many are wanted next.

Every rank guesses the same. The first one also measures what steps take and which guesses were
right, and so decides.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, cast

import msgspec
import numpy as np
import torch

from builtin_plugins.speculators.balance import LONGEST_REST, Balance
from builtin_plugins.speculators.messages import NAME, Granted, Report
from builtin_plugins.speculators.pace import KEPT, MISJUDGED, Ints, Pace
from core.api import DraftRow

if TYPE_CHECKING:
    from core.api import ForwardBatch, LayerKV, SpeculativeConfig, Speculator
    from core.contracts.scheduling import LoadedParts, Sampled, WorkerParts
    from core.step import NewRow

log = logging.getLogger(__name__)
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Granted).decode
SHORTEST_REST: Final = 8
"""Steps in which nothing is considered, after one in which guesses would not have paid; each rest
is twice as long as the last.
"""


class Drafting:
    """Asks one speculator, whose faults cost nothing but speed."""

    name = NAME

    def __init__(
        self,
        speculator: Speculator,
        settings: SpeculativeConfig,
        num_rows: int,
        explain: Callable[[Exception], str],
    ) -> None:
        """`explain` logs what the speculator raised, with whose fault it is."""
        self._speculator: Speculator | None = speculator
        self._seen: Callable[..., None] | None = getattr(speculator, "seen", None)
        self._explain = explain
        self.most_guesses = settings.most
        self._most = settings.most
        self._too_many = settings.disable_by_batch_size or num_rows + 1
        self._adaptive = settings.adaptive
        self._pace = self._make_pace(settings, num_rows + 1)
        self._owners: list[NewRow | None] = [None] * (num_rows + 1)
        self._found: dict[int, Sequence[int]] = {}
        """What was found behind the last step, by row ..."""
        self._lengths: dict[int, int] = {}
        """... and how many tokens were known then."""
        self._checked: tuple[list[int], list[int]] = [], []
        """Rows that guess in this step, and how many tokens each."""
        self._sampled: Sampled | None = None
        self._begun_s = 0.0
        self._num_tokens = 0
        self._ended_s = 0.0
        """When the last step ended; 0: that says nothing of what lay between it and this one."""
        self._between_s: tuple[deque[float], deque[float]] = deque(maxlen=KEPT), deque(maxlen=KEPT)
        """What lay between the last few steps without guesses and the next, and between those with
        guesses and the next: all that
        is not done on the device. The shortest counts."""
        self._guessing_s = 0.0
        """What it took in this step to guess."""
        self._rest = self._last_rest = 0
        """Steps to go, and as many as there were, before it is considered again whether to guess.
        """
        self._balance: Final = Balance()
        self._resting = False
        """In this step nothing is considered."""
        self._slept = 0
        self._last_s = 0.0
        """Steps since the last one that it took part in, and what that took."""
        self._resting_rows = 0
        self._considering_s: deque[float] = deque(maxlen=KEPT)
        """What it took to consider guesses of one row, and to look for them, the last few times;
        the shortest counts, as of steps.
        """
        self._wanting = False

    def _make_pace(self, settings: SpeculativeConfig, num_rows: int) -> Pace:
        return Pace(num_rows, settings.most, adaptive=settings.adaptive)

    def loaded(self, parts: LoadedParts) -> Sequence[LayerKV]:
        """Return the layers of a speculator that has some."""
        load = getattr(self._speculator, "loaded", None)
        return [] if load is None else list(load(parts))

    def attach(self, parts: WorkerParts) -> None:
        """Take rows and tokens."""
        self._batch = parts.batch
        self._vocab_size = parts.model.vocab_size
        self._decides = parts.group.rank == 0
        attach = getattr(self._speculator, "attach", None)
        if attach is not None:
            attach(parts)

    # --- before the model

    def rests(self, num_rows: int, payload: bytes | None) -> bool:
        """Say whether nothing is guessed, considered or read in this step.

        A step behind one in which guesses were wanted may get some, whose rows' ends must be known.
        Ranks that do not decide cannot tell when that will be.
        """
        self._resting = not num_rows or self._is_resting(num_rows)
        reads = self._seen is not None and self._speculator is not None
        sleeps = (
            self._resting and payload is None and self._decides and not (self._wanting or reads)
        )
        self._slept += sleeps
        self._ended_s = 0.0 if sleeps else self._ended_s
        return sleeps

    def begin(self, payload: bytes | None) -> None:
        """Write the guesses of rows that may check some."""
        self._begun_s = time.perf_counter()
        self._guessing_s = 0.0
        self._sampled = None
        self._num_tokens = 0
        if self._ended_s:
            self._between_s[bool(self._checked[0])].append(self._begun_s - self._ended_s)
        self._checked = ([], [])
        self._ended_s = 0.0
        if payload is None:
            return
        granted = _decode(payload)
        asking = [
            (row, most) for row, most in zip(granted.rows, granted.counts, strict=False) if most
        ]
        wanting = [(row, most) for row, most in asking if row not in self._found]
        if wanting and self._speculator is not None:
            ends = self._batch.ends[[row for row, _ in wanting]].tolist()
            asked = [(row, end + 1, most) for (row, most), end in zip(wanting, ends, strict=True)]
            begun_s = time.perf_counter()
            self._found |= self._drafts(self._speculator, asked)
            self._guessing_s = time.perf_counter() - begun_s
        rows = [row for row, _ in asking]
        drafts = [list(self._found.get(row, ()))[:most] for row, most in asking]
        self._write(rows, drafts)
        self._checked = rows, [len(draft) for draft in drafts]

    def _write(self, rows: Sequence[int], drafts: Sequence[Sequence[int]]) -> None:
        tokens = self._batch.token_ids
        width = self._batch.token_ids.shape[1]
        firsts = [row * width + self._lengths.get(row, 0) for row in rows]
        places = [
            first + ahead
            for first, draft in zip(firsts, drafts, strict=True)
            for ahead in range(len(draft))
        ]
        if places:
            both = torch.tensor([places, [token for draft in drafts for token in draft]]).to(
                tokens.device
            )
            tokens.view(-1).index_copy_(0, both[0], both[1])

    def _drafts(
        self, speculator: Speculator, rows: Sequence[tuple[int, int, int]]
    ) -> dict[int, Sequence[int]]:
        """Return what the speculator guesses for (row, known tokens, most), made of tokens that
        there are.
        """
        asked = []
        for row, length, most in rows:
            owner = cast("NewRow", self._batch.requests[row])  # a row that computes has one
            tokens = self._batch.token_ids[row, :length].numpy(force=True)
            asked.append(self._shaped(DraftRow(row, owner, tokens, most)))
            self._lengths[row] = length
        try:
            drafts = speculator.drafts(asked)
            return {
                each.row: self._sound(draft, each)
                for each, draft in zip(asked, drafts, strict=True)
            }
        except Exception as error:  # noqa: BLE001 - plugin code may raise anything; requests do without guesses
            log.error("%s; nothing is guessed any more", self._explain(error))
            self._speculator = None
            return {}

    def _shaped(self, asked: DraftRow) -> DraftRow:
        """Return what the speculator is asked for."""
        return asked

    def _sound(self, draft: Sequence[int], asked: DraftRow) -> list[int]:
        """Return the draft up to its first token that is none of the vocabulary."""
        sound: list[int] = []
        for token in draft[: asked.most]:
            if not 0 <= token < self._vocab_size:
                break
            sound.append(int(token))
        return sound

    def before_forward(self, batch: ForwardBatch, payload: bytes | None) -> None:
        """Count the step's tokens."""
        self._num_tokens = len(batch.input_ids)

    # --- behind it

    def after_forward(
        self, batch: ForwardBatch, hidden: torch.Tensor, payload: bytes | None
    ) -> None:
        """Show a speculator that reads hidden states what the model has made."""
        if self._seen is not None and self._speculator is not None:
            self._seen(batch, hidden)

    def sampled(self, sampled: Sampled, payload: bytes | None) -> None:
        """Keep what was sampled until the step has ended."""
        self._sampled = sampled

    def after_sample(self, payload: bytes | None) -> bytes | None:
        """Report which guesses were right, and how many are wanted next."""
        self._found.clear()
        sampled = self._sampled
        if not self._decides or sampled is None:
            return None
        ended_s = self._ended_s = time.perf_counter()
        seconds = (
            ended_s - self._begun_s + min(self._between_s[bool(self._checked[0])], default=0.0)
        )
        for account in (self._pace, self._balance):
            account.passed(seconds)
            account.passed(
                min(seconds, self._last_s), self._slept
            )  # it is not known that they took longer
        self._slept = 0
        self._last_s = seconds
        speculator = self._speculator
        if speculator is None or self._resting:  # it may have failed in this step
            if not self._wanting:
                return None
            self._wanting = False
            return _encode(Report())
        rows = _firsts(sampled)
        self._note_owners(rows)
        drafted = [0] * len(rows)
        if self._checked[0]:
            counts = dict(zip(*self._checked, strict=True))
            drafted = [counts.get(row, 0) for row in rows]
        num_plain = len(rows) + sum(self._checked[1])
        costs = self._pace.costs
        (costs.take_prompts if self._num_tokens > num_plain else costs.take)(
            self._num_tokens, seconds
        )
        accepted = self._verified(rows, drafted, sampled)
        if self._checked[0]:
            saved_s = self._pace.tried(
                len(rows), seconds, sum(accepted) / len(rows), self._guessing_s
            )
            self._balance.saved(saved_s, self._pace.plain_s(len(rows)))
        wanted = [0] * len(rows)
        rest = 0
        if not (self._adaptive and self._balance.is_spent):
            wanted, rest = self._want(speculator, rows, sampled)
            self._considering_s.append((time.perf_counter() - ended_s) / len(rows))
        self._ended_s = time.perf_counter()
        self._balance.spent(min(self._ended_s - ended_s, MISJUDGED * seconds))
        if self._adaptive and not any(wanted):
            self._rest = max(rest, self._balance.rest(seconds))
            self._resting_rows = len(rows)
        checked = [place for place, count in enumerate(drafted) if count]
        report = Report.of(
            [rows[place] for place in checked],
            [drafted[place] for place in checked],
            [accepted[place] for place in checked],
            [row for row, count in zip(rows, wanted, strict=True) if count],
            [count for count in wanted if count],
        )
        if not (report.rows or report.wanting or self._wanting):
            return None
        self._wanting = bool(report.wanting)
        return _encode(report)

    def _is_resting(self, num_rows: int) -> bool:
        """Say whether this step is one of those in which nothing is considered."""
        if num_rows >= self._too_many or self._speculator is None:
            return True
        if self._rest and 2 * num_rows > self._resting_rows:
            self._rest -= 1
            return True
        self._rest = 0
        return False

    def _note_owners(self, rows: Sequence[int]) -> None:
        for row in rows:
            owner = self._batch.requests[row]
            if owner is not self._owners[row]:
                self._owners[row] = owner
                self._pace.entered(row)

    def _verified(self, rows: Sequence[int], drafted: Sequence[int], sampled: Sampled) -> list[int]:
        """Return how many guesses of each row were right."""
        if not self._checked[0]:
            return [0] * len(rows)
        right = np.minimum(sampled.accepted.numpy(force=True) - 1, drafted)
        checked = np.asarray(drafted).nonzero()[0]
        if len(checked):
            looked = self._looked_at(rows, np.asarray(drafted), right)
            self._pace.verified(np.asarray(rows)[checked], looked[checked], right[checked])
        accepted: list[int] = right.tolist()
        return accepted

    def _looked_at(self, rows: Sequence[int], drafted: Ints, right: Ints) -> Ints:
        """Return how many guesses of each row say something: those that are right, and the wrong
        one behind them.
        """
        return np.minimum(right + 1, drafted)

    def _ready(self, rows: Sequence[int]) -> Ints:
        """Return how many guesses each row may have."""
        return np.full(len(rows), self._most)

    def _want(
        self, speculator: Speculator, rows: Sequence[int], sampled: Sampled
    ) -> tuple[list[int], int]:
        """Return how many guesses each row shall check in the next step; and if none, how many
        steps to rest at least.
        """
        index = np.asarray(rows)
        ready = self._ready(rows)
        # Where it did not pay of late, nobody looks unless it would if there were guesses for all.
        idle = self._last_rest > 0 and not self._pace.choose(index, ready, pretend=True).any()
        if speculator.finds and not idle:
            asked = [
                (row, end + 1, self._most)
                for row, end in zip(rows, sampled.ends.tolist(), strict=True)
            ]
            self._found = self._drafts(speculator, asked)
            ready = np.array([len(self._found.get(row, ())) for row in rows])
            if not ready.any():
                return [0] * len(rows), 0
        considering_s = min(self._considering_s, default=0.0) * len(rows)
        wanted = np.zeros_like(index) if idle else self._pace.choose(index, ready, considering_s)
        self._last_rest = (
            0 if wanted.any() else max(SHORTEST_REST, min(LONGEST_REST, 2 * self._last_rest))
        )
        counts: list[int] = wanted.tolist()
        return counts, self._last_rest


def _firsts(sampled: Sampled) -> list[int]:
    """Return the rows that sample, each once."""
    rows = sampled.rows.rows
    if len(rows) == len(sampled.ends):
        return rows
    return [row for row, point in zip(rows, sampled.rows.points, strict=True) if point == 0]
