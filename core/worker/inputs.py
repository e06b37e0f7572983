"""The inputs of one step: computed on the host, staged, then copied to the
device in one piece.

Knows positions of tokens and samples; knows no block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from core.step import NewRow

Ints = npt.NDArray[np.int64]
Staged = tuple[torch.Tensor, list[int]]
"""Staged numbers on the host, and the sizes of the arrays in them."""

_DECODE_ARRAYS: Final = (
    "tokens",
    "positions",
    "rows",
    "counts",
    "lengths",
    "destinations",
    "starts",
    "point_rows",
    "sampled",
    "point_lengths",
)


class Staging:
    """A ring of host buffers, and one device buffer at a fixed address for
    all steps.
    """

    def __init__(self, device: str, num_steps: int, size: int) -> None:
        """Create buffers for one step in preparation and `num_steps` not yet
        copied.
        """
        self._pinned = torch.device(device).type == "cuda"
        self._hosts = [self._host(size) for _ in range(num_steps + 1)]
        self._next_buffer = cycle(range(num_steps + 1))
        self._device = torch.zeros(size, dtype=torch.int64, device=device)

    def _host(self, size: int) -> tuple[torch.Tensor, Ints]:
        if self._pinned:
            pinned = torch.zeros(size, dtype=torch.int64, pin_memory=True)
            return pinned, pinned.numpy()
        numbers = np.zeros(size, dtype=np.int64)
        return torch.from_numpy(numbers), numbers

    def begin(self) -> None:
        """Start the next step."""
        self._buffer = next(self._next_buffer)
        self._used = 0
        self._sizes = list[int]()
        self._numbers = self._hosts[self._buffer][1]

    def put(self, numbers: Ints | Sequence[int]) -> int:
        """Stage an array; return its index in the result of `upload`."""
        count = len(numbers)
        end = self._used + count
        if end > len(self._numbers):
            grown = self._host(2 * end)
            grown[1][: self._used] = self._numbers[: self._used]
            self._hosts[self._buffer] = grown
            self._numbers = grown[1]
        self._numbers[self._used : end] = numbers
        self._used = end
        self._sizes.append(count)
        return len(self._sizes) - 1

    def end(self) -> Staged:
        """Return the step's staged numbers, on the host."""
        return self._hosts[self._buffer][0][: self._used], self._sizes

    def upload(self, staged: Staged) -> Sequence[torch.Tensor]:
        """Copy staged numbers to the device, in stream order; return them
        array by array.
        """
        numbers, sizes = staged
        count = len(numbers)
        if count > len(self._device):
            self._device = self._device.new_zeros(2 * count)
        uploaded = self._device[:count].copy_(numbers, non_blocking=True)
        return torch.split(uploaded, sizes)


@dataclass(frozen=True, slots=True)
class DraftCorrection:
    """Rows to correct on the host when their accepted draft tokens
    are known.
    """

    rows: Ints
    num_draft_tokens: Ints
    epochs: Ints


class DecodeBatch:
    """Rows that decode one token each, and arrays that are equal in each of
    their steps.
    """

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
    """One step's tokens: those of the plan's decode rows, of the other rows,
    then padding.

    Host positions are upper bounds while `num_unverified` is set. Device tensors are
    valid until the next step.
    """

    new: list[NewRow]
    version: int
    """Changes whenever a request enters the batch."""
    rows: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    """Indices into `rows` of the rows that sample."""
    num_tokens: int = 0
    """Tokens without padding."""
    padding: int = 0
    """Padding tokens at the end, each a sequence of its own."""
    query_starts: list[int] = field(default_factory=list)
    """Cumulative token counts, length num_seqs + 1."""
    kv_lens: list[int] = field(default_factory=list)
    row_index: Ints = field(init=False)
    """`rows` and the rows of padding; the next three are parallel to it."""
    row_starts: Ints = field(init=False)
    row_counts: Ints = field(init=False)
    row_lengths: Ints = field(init=False)
    token_rows: Ints = field(init=False)
    token_positions: Ints = field(init=False)
    num_unverified: Ints | None = None
    """By how much each of `row_starts` may be too high; None: they
    are exact.
    """
    num_draft_tokens: Ints | None = None
    """Draft tokens per entry of `samples`; None without draft tokens."""
    points: list[int] | None = None
    """Draft tokens before each sampled token; None without draft tokens."""
    point_rows: list[int] = field(default_factory=list)
    """Row of each sampled token."""
    lengths: list[int] | None = None
    """Known and draft tokens before each sampled token; None if only the
    device knows.
    """
    samples_every_token: bool = False
    """Whether a token is sampled after every token of the step, in order."""
    correction: DraftCorrection | None = None
    encoder_rows: list[NewRow] = field(default_factory=list)
    """New rows with encoder positions to compute."""
    groups: list[Any] = field(default_factory=list)
    """Block-table lookups per KV group."""
    entered: tuple[int, int, list[int]] | None = None
    """Staged indices of the new rows' sampling columns and tokens."""
    appended: tuple[int, int] | None = None
    """Staged indices of the appended blocks' table offsets and ids."""
    numbers: Staged = field(init=False)
    """Staged arrays of the tokens."""
    updates: Staged = field(init=False)
    """Staged arrays of new rows and blocks."""
    on_device: Sequence[torch.Tensor] = field(init=False)
    input_ids: torch.Tensor = field(init=False)
    positions: torch.Tensor = field(init=False)
    accepted: torch.Tensor | None = None
    """Accepted tokens per sampling row, received from another
    pipeline stage.
    """
    next_positions: torch.Tensor | None = None
    """Position that each sampling row computes next."""
    _arrays: dict[str, int] = field(default_factory=dict)
    """Index in `on_device` by array name."""

    def place_decode(self, decode: DecodeBatch, starts: Ints, staging: Staging) -> None:
        """Fill the inputs of a decode-only step; the fast path of `place` and
        `place_samples`.
        """
        lengths = starts + 1
        tokens = decode.bases + starts
        self.rows = decode.rows
        self.point_rows = decode.rows
        self.row_index = decode.index
        self.token_rows = decode.index
        self.row_starts = starts
        self.token_positions = starts
        self.row_counts = decode.counts
        self.row_lengths = lengths
        self.starts = starts.tolist()
        self.counts = decode.ones
        self.samples = decode.samples
        self.kv_lens = lengths.tolist()
        self.lengths = self.kv_lens
        self.query_starts = decode.query_starts
        self.num_tokens = len(decode.rows)
        self.samples_every_token = True
        put = staging.put
        staged = (
            put(tokens),
            put(starts),
            put(decode.index),
            put(decode.counts),
            put(lengths),
            put(tokens + 1),
        )
        _, start, row, _, length, _ = staged
        shared = (start, row, row, length)
        self._arrays = dict(zip(_DECODE_ARRAYS, (*staged, *shared), strict=True))

    def place(self, rows: Ints, starts: Ints, counts: Ints, length: int, staging: Staging) -> None:
        """Fill the position of each token; `length` is the width of the token
        buffer.
        """
        total = int(counts.sum())
        own = len(rows) - self.padding
        self.row_index = rows
        self.row_starts = starts
        self.row_counts = counts
        self.row_lengths = starts + counts
        self.starts = starts[:own].tolist()
        self.counts = counts[:own].tolist()
        self.kv_lens = self.row_lengths.tolist()
        if total == len(rows):  # one token per row
            self.token_rows = rows
            self.token_positions = starts
            self.query_starts = list(range(total + 1))
        else:
            ends = np.cumsum(counts)
            offsets = np.repeat(ends - counts - starts, counts)
            self.token_rows = np.repeat(rows, counts)
            self.token_positions = np.arange(total) - offsets
            self.query_starts = [0, *ends.tolist()]
        self.num_tokens = total - self.padding
        put = staging.put
        arrays = self._arrays
        arrays["tokens"] = put(self.token_rows * length + self.token_positions)
        arrays["positions"] = put(self.token_positions)
        arrays["rows"] = put(rows)
        arrays["starts"] = put(starts)
        arrays["counts"] = put(counts)
        arrays["lengths"] = put(self.row_lengths)

    def place_samples(self, length: int, staging: Staging) -> None:
        """Fill where tokens are sampled: after the last known token and after
        each draft token.
        """
        sequences = np.asarray(self.samples, dtype=np.int64)
        sampled = self.row_index[sequences]
        put = staging.put
        arrays = self._arrays
        drafts_after = np.zeros_like(sequences)
        if self.num_draft_tokens is not None:
            per_row = self.num_draft_tokens + 1
            firsts = np.cumsum(per_row) - per_row
            points = np.arange(int(per_row.sum())) - np.repeat(firsts, per_row)
            drafts_after = np.repeat(self.num_draft_tokens, per_row) - points
            sequences = np.repeat(sequences, per_row)
            self.points = points.tolist()
            arrays["firsts"] = put(firsts)
        rows = self.row_index[sequences]
        lengths = self.row_lengths[sequences] - drafts_after
        self.point_rows = rows.tolist()
        self.samples_every_token = len(rows) == self.num_tokens
        self.lengths = lengths.tolist() if self.num_unverified is None else None
        if not self.samples_every_token:
            ends = np.asarray(self.query_starts, dtype=np.int64)[sequences + 1]
            arrays["lasts"] = put(ends - 1 - drafts_after)
        arrays["point_rows"] = put(rows)
        arrays["sampled"] = put(sampled)
        arrays["point_lengths"] = put(lengths)
        arrays["destinations"] = put(rows * length + lengths)
        if self.num_unverified is not None:
            token_sequences = np.repeat(np.arange(len(self.row_index)), self.row_counts)
            arrays["num_unverified"] = put(self.num_unverified)
            arrays["point_sequences"] = put(sequences)
            arrays["sequences"] = put(token_sequences)

    def array(self, name: str) -> torch.Tensor:
        """Return a device array: [tokens], [rows] or [points], by its name in
        `place`.
        """
        return self.on_device[self._arrays[name]]

    def on_device_ready(
        self, on_device: Sequence[torch.Tensor], next_positions: torch.Tensor
    ) -> None:
        """Set the uploaded arrays, and correct the positions of rows with
        unverified drafts.

        `next_positions` holds the exact position of each row.
        """
        self.on_device = on_device
        if self.num_unverified is not None:
            starts = self.array("starts")
            rejected = starts - next_positions[self.array("rows")]
            rejected = rejected.where(self.array("num_unverified") > 0, 0)
            by_token = rejected[self.array("sequences")]
            by_point = rejected[self.array("point_sequences")]
            starts.sub_(rejected)
            self.array("lengths").sub_(rejected)
            self.array("positions").sub_(by_token)
            self.array("tokens").sub_(by_token)
            self.array("point_lengths").sub_(by_point)
            self.array("destinations").sub_(by_point)
        if self.rows:
            self.positions = self.array("positions")[: self.num_tokens]
