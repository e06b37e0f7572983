"""Where the tokens of one step stand, and where it samples: numbers on the host, then on the
device. Knows no block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch

from core.step import NewRow
from core.worker.staging import Ints, Staged, Staging

_STEADY_PLACES: Final = (
    *("tokens", "positions", "rows", "counts", "lengths", "destinations"),
    *("starts", "point_rows", "sampled", "point_lengths"),
)


@dataclass(frozen=True, slots=True)
class Ahead:
    """What is to be corrected once it is known how many guesses of a step were right."""

    rows: Ints
    guesses: Ints
    epochs: Ints


class Steady:
    """Rows that go on with one token each, and what stays alike in every step of them."""

    def __init__(self, rows: list[int], length: int) -> None:
        self.rows = rows
        self.index = np.asarray(rows, dtype=np.int64)
        self.bases = self.index * length
        self.counts = np.ones_like(self.index)
        self.ones = [1] * len(rows)
        self.samples = list(range(len(rows)))
        self.query_starts = list(range(len(rows) + 1))


@dataclass(slots=True)
class StepInputs:
    """One step's tokens: those of the plan's steady rows, then of the others, then padding.

    What the host writes are upper bounds where there is `slack`. What lies on the device is good
    until the next step.
    """

    new: list[NewRow]
    version: int
    """Another one where a row may have got another request."""
    rows: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    """Indices into `rows` of those that sample."""
    num_tokens: int = 0
    padding: int = 0
    """Tokens behind those, each a sequence of its own."""
    query_starts: list[int] = field(default_factory=list)
    """Cumulative token counts, length num_seqs + 1."""
    kv_lens: list[int] = field(default_factory=list)
    row_index: Ints = field(init=False)
    """`rows`, with those of padding, and what belongs to them."""
    row_starts: Ints = field(init=False)
    row_counts: Ints = field(init=False)
    row_lengths: Ints = field(init=False)
    token_rows: Ints = field(init=False)
    token_positions: Ints = field(init=False)
    slack: Ints | None = None
    """By how much each of `row_starts` may be less; None: they are exact."""
    guesses: Ints | None = None
    """By entry of `samples`; None: there are none."""
    points: list[int] | None = None
    """Guesses before each token that is sampled; None: there are none."""
    point_rows: list[int] = field(default_factory=list)
    """Row of each token that is sampled."""
    lengths: list[int] | None = None
    """Known tokens and guesses before each token that is sampled; None: only the device knows."""
    whole: bool = False
    """A token is sampled behind every token of the step, in its order."""
    ahead: Ahead | None = None
    beside: list[NewRow] = field(default_factory=list)
    """Those that enter with positions beside their tokens."""
    groups: list[Any] = field(default_factory=list)
    """Per KV group, what its inputs are made of."""
    entered: tuple[int, int, list[int]] | None = None
    appended: tuple[int, int] | None = None
    numbers: Staged = field(init=False)
    """What is to be brought to the device, and what of that is about rows and blocks that are new.
    """
    news: Staged = field(init=False)
    on_device: Sequence[torch.Tensor] = field(init=False)
    input_ids: torch.Tensor = field(init=False)
    positions: torch.Tensor = field(init=False)
    accepted: torch.Tensor | None = None
    """Tokens that hold of each row that samples, where another stage has found that out."""
    ends: torch.Tensor | None = None
    """Where each row that samples goes on."""
    _places: dict[str, int] = field(default_factory=dict)

    def go_on(self, same: Steady, starts: Ints, staging: Staging) -> None:
        """Place a step of such rows alone, as `place` and `place_samples` would."""
        lengths = starts + 1
        tokens = same.bases + starts
        put = staging.put
        self.rows = self.point_rows = same.rows
        self.row_index = self.token_rows = same.index
        self.row_starts = self.token_positions = starts
        self.row_counts = same.counts
        self.row_lengths = lengths
        self.starts = starts.tolist()
        self.counts = same.ones
        self.samples = same.samples
        self.kv_lens = self.lengths = lengths.tolist()
        self.query_starts = same.query_starts
        self.num_tokens = len(same.rows)
        self.whole = True
        at = (
            put(tokens),
            put(starts),
            put(same.index),
            put(same.counts),
            put(lengths),
            put(tokens + 1),
        )
        self._places = dict(zip(_STEADY_PLACES, (*at, at[1], at[2], at[2], at[4]), strict=True))

    def place(self, rows: Ints, starts: Ints, counts: Ints, length: int, staging: Staging) -> None:
        """Work out the place of each token; `length` is that of a row of tokens."""
        self.row_index = rows
        self.row_starts = starts
        self.row_counts = counts
        self.row_lengths = starts + counts
        total = int(counts.sum())
        own = len(rows) - self.padding
        self.starts = starts[:own].tolist()
        self.counts = counts[:own].tolist()
        self.kv_lens = self.row_lengths.tolist()
        if total == len(rows):  # decoding only: one token per row
            self.token_rows = rows
            self.token_positions = starts
            self.query_starts = list(range(total + 1))
        else:
            ends = np.cumsum(counts)
            self.token_rows = np.repeat(rows, counts)
            self.token_positions = np.arange(total) - np.repeat(ends - counts - starts, counts)
            self.query_starts = [0, *ends.tolist()]
        self.num_tokens = total - self.padding
        put = staging.put
        places = self._places
        places["tokens"] = put(self.token_rows * length + self.token_positions)
        places["positions"] = put(self.token_positions)
        places["rows"], places["starts"], places["counts"] = put(rows), put(starts), put(counts)
        places["lengths"] = put(self.row_lengths)

    def place_samples(self, length: int, staging: Staging) -> None:
        """Work out where tokens are sampled: behind the last known token of rows that sample, and
        behind each guess.
        """
        sequences = np.asarray(self.samples, dtype=np.int64)
        sampled = self.row_index[sequences]
        put = staging.put
        places = self._places
        behind = np.zeros_like(sequences)
        if self.guesses is not None:
            each = self.guesses + 1
            firsts = np.cumsum(each) - each
            points = np.arange(int(each.sum())) - np.repeat(firsts, each)
            behind = np.repeat(self.guesses, each) - points
            sequences = np.repeat(sequences, each)
            self.points, places["firsts"] = points.tolist(), put(firsts)
        rows = self.row_index[sequences]
        lengths = self.row_lengths[sequences] - behind
        self.point_rows = rows.tolist()
        self.whole = len(rows) == self.num_tokens
        self.lengths = lengths.tolist() if self.slack is None else None
        if not self.whole:
            places["lasts"] = put(
                np.asarray(self.query_starts, dtype=np.int64)[sequences + 1] - 1 - behind
            )
        places["point_rows"], places["sampled"] = put(rows), put(sampled)
        places["point_lengths"], places["destinations"] = put(lengths), put(rows * length + lengths)
        if self.slack is not None:
            places["slack"], places["point_sequences"] = put(self.slack), put(sequences)
            places["sequences"] = put(np.repeat(np.arange(len(self.row_index)), self.row_counts))

    def at(self, name: str) -> torch.Tensor:
        """Return numbers on the device: [tokens], [rows] or [points], as `place` and
        `place_samples` name them.
        """
        return self.on_device[self._places[name]]

    def arrive(self, device: Sequence[torch.Tensor], ends: torch.Tensor) -> None:
        """The numbers are on the device, where `ends` says how far rows with slack truly are."""
        self.on_device = device
        if self.slack is not None:
            starts = self.at("starts")
            less = (starts - ends[self.at("rows")]).where(self.at("slack") > 0, 0)
            by_token = less[self.at("sequences")]
            by_point = less[self.at("point_sequences")]
            owners = (
                ("starts", less),
                ("lengths", less),
                ("positions", by_token),
                ("tokens", by_token),
                ("point_lengths", by_point),
                ("destinations", by_point),
            )
            for name, numbers in owners:
                self.at(name).sub_(numbers)
        if self.rows:
            self.positions = self.at("positions")[: self.num_tokens]
