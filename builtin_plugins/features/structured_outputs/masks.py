"""The worker half: keeps logits of what may not come at -inf, for each constrained row.

The tokens of a step are copied to the host behind the model's back and sent to the keepers of
grammars, which make the masks they lead to while the next step's model runs. So constrained
requests are scheduled ahead like all others.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import msgspec
import numpy as np
import torch

from builtin_plugins.features.structured_outputs.handle import Line
from builtin_plugins.features.structured_outputs.keepers import Keepers
from builtin_plugins.features.structured_outputs.lines import Lines
from builtin_plugins.features.structured_outputs.messages import Points
from builtin_plugins.features.structured_outputs.news import NAME, News, Told
from builtin_plugins.features.structured_outputs.rows import Mask
from core.api import ForwardBatch, SampleRows
from core.contracts.scheduling import WorkerParts

_decode: Final = msgspec.msgpack.Decoder(News).decode
_encode: Final = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class _Asked:
    """A constrained row of a step."""

    line: Line
    places: list[int]
    """Its points, as places among the step's."""
    guesses: list[int]


@dataclass(frozen=True, slots=True)
class _Sampled:
    """The constrained rows of a step that had their masks, and where in the batch its tokens
    appear.
    """

    rows: list[_Asked]
    token_ids: torch.Tensor
    row_index: torch.Tensor
    length_index: torch.Tensor


class MaskMaker:
    """Has masks for all constrained rows of a step at once, one for each point that a row samples
    at.
    """

    name = NAME

    def __init__(self, keepers: Keepers, *, serves: bool = False) -> None:
        """`serves`: constraints will come, and none shall wait for a library to be loaded."""
        self._keepers = keepers
        self._serves = serves and keepers.settings.warm_up
        if self._serves:
            keepers.warm_up()
        self._lines: Lines | None = None
        """None where nothing is sampled."""
        self._thread: ThreadPoolExecutor | None = None
        self._sending: Future[None] | None = None
        """The step under way's tokens on their way to the keepers."""
        self._sampled: _Sampled | None = None
        self._told: list[Told] = []
        self._taken: bytes | None = None
        self._unsure: set[int] = set()
        """Rows that have sampled behind guesses: how many of their tokens were kept the next step's
        lengths say.
        """

    def attach(self, parts: WorkerParts) -> None:
        """Begin where the last layers are: there tokens are sampled."""
        if parts.pipeline.is_last:
            self.begin_with(parts.tell, parts.group.rank)
            self._keepers.is_here = True
            if self._serves:
                self._keepers.await_warmth()
        else:
            self._keepers.close()

    def begin_with(self, tell: Callable[[bytes], None], rank: int = 0) -> None:
        """Tell the scheduler half of masks in this way."""
        self._lines = Lines(self._keepers, lambda told: tell(_encode(told)), rank)

    def close(self) -> None:
        """End all keepers."""
        self._keepers.close()

    def before_forward(self, batch: ForwardBatch, payload: bytes | None) -> None:
        """Take over which rows are constrained."""
        self._take(payload)

    def _take(self, payload: bytes | None) -> None:
        if payload is not None and payload is not self._taken and self._lines is not None:
            self._taken = payload
            self._lines.update(_decode(payload))

    def before_sample(
        self, logits: torch.Tensor, rows: SampleRows, payload: bytes | None
    ) -> torch.Tensor:
        """Mask the rows that are constrained; the others are not touched.

        A row whose mask is late is told of.
        """
        lines = self._lines
        if lines is None:
            return logits
        places = [i for i, row in enumerate(rows.rows) if row in lines]
        if not places:
            return logits
        if self._sending is not None:
            self._sending.result()
            self._sending = None
        lines.begin_wait()
        asked = self._ask(lines, rows, places)
        lines.wait([one.line for one in asked])
        masks: list[Mask] = []
        kept: list[int] = []
        found: list[_Asked] = []
        for one in asked:
            if one.line.is_late or one.line.error is not None:
                self._told.append(lines.late(one.line))
                continue
            found.append(one)
            masks += [one.line.mask, *(np.frombuffer(more, np.int32) for more in one.line.more)]
            kept += one.places
        if not kept:
            return logits
        where = torch.tensor(kept, device=logits.device)
        self._sampled = _Sampled(
            found, rows.token_ids, rows.row_index[where], rows.length_index[where]
        )
        packed = np.stack(masks)  # [n, words] int32
        return mask_rows(logits, packed, None if len(kept) == len(rows.rows) else where)

    def _ask(self, lines: Lines, rows: SampleRows, places: list[int]) -> list[_Asked]:
        """Return the constrained rows; have the masks made of those that sample at several points."""
        lengths, tokens = self._known(rows, places)
        asked = []
        points = []
        for number, group in groupby(range(len(places)), key=lambda k: rows.rows[places[k]]):
            own = [*group]
            line = lines[number]
            length = lengths[own[0]]
            guesses = [tokens[k] for k in own[:-1]]
            line.more = []
            asked.append(_Asked(line, [places[k] for k in own], guesses))
            if tokens and not line.is_late and (guesses or length != line.length):
                back = max(0, line.length - length)
                fresh = rows.token_ids[number, line.length : length].tolist()
                points.append((line, Points(line.number, back, fresh, guesses)))
                line.length = length
        if points:
            lines.wait([line for line, _ in points])  # what was asked for before
            lines.points(points)
        return asked

    def _known(self, rows: SampleRows, places: list[int]) -> tuple[list[int], list[int]]:
        """Return, for each of the places, how many tokens are known before it and the one guessed
        there.

        Behind guesses only the device knows how many were kept; where there were none nothing is
        read back, and there are no guesses to return. The lengths are then exact for rows that are
        new, others have counted theirs.
        """
        points = getattr(rows, "points", None) or ()
        guessing = {rows.rows[i] for i in places if points and points[i]}
        sampled = {rows.rows[i] for i in places}
        is_known = not guessing and self._unsure.isdisjoint(sampled)
        self._unsure = (self._unsure - sampled) | guessing
        if is_known:
            return [rows.lengths[i] for i in places], []
        where = torch.tensor(places, device=rows.token_ids.device)
        lengths = rows.length_index[where]
        known: list[list[int]] = torch.stack(
            (lengths, rows.token_ids[rows.row_index[where], lengths])
        ).tolist()
        return known[0], known[1]

    def after_sample(self, payload: bytes | None) -> bytes | None:
        """Begin the masks of the next step; tell of those that this one went without."""
        self._take(payload)
        sampled = self._sampled
        self._sampled = None
        if sampled is not None and self._lines is not None:
            self._send(self._lines, sampled)
        told = self._told
        self._told = []
        return _encode(told) if told else None

    def _send(self, lines: Lines, sampled: _Sampled) -> None:
        tokens = sampled.token_ids[sampled.row_index, sampled.length_index]
        if not tokens.is_cuda:
            lines.advance(_kept(sampled.rows, tokens))
            return
        tokens = tokens.to("cpu", non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar-masks")
        self._sending = self._thread.submit(_advance, lines, sampled.rows, tokens, event)


def _advance(lines: Lines, rows: list[_Asked], tokens: torch.Tensor, event: Any) -> None:
    event.synchronize()
    lines.advance(_kept(rows, tokens))


def _kept(rows: list[_Asked], tokens: torch.Tensor) -> list[tuple[Line, list[int]]]:
    """Return each row's tokens that hold, which are those behind right guesses."""
    sampled = iter(tokens.tolist())
    kept = []
    for row in rows:
        points = [next(sampled) for _ in row.places]
        right = (
            number
            for number, pair in enumerate(zip(row.guesses, points, strict=False))
            if pair[0] != pair[1]
        )
        kept.append((row.line, points[: 1 + next(right, len(row.guesses))]))
    return kept


def mask_rows(
    logits: torch.Tensor, packed: np.ndarray[Any, Any], where: torch.Tensor | None
) -> torch.Tensor:
    """Return logits [n, vocab] with -inf where the bit of a row's mask is 0; rows beside `where`
    stay as they are.
    """
    vocab = logits.shape[1]
    if logits.is_cuda:
        words = torch.from_numpy(packed).to(logits.device, non_blocking=True)
        shifts = torch.arange(32, device=logits.device, dtype=torch.int32)
        allowed = ((words[:, :, None] >> shifts) & 1).flatten(1).bool()
    else:
        allowed = torch.from_numpy(
            np.unpackbits(packed.view(np.uint8), axis=1, bitorder="little")
        ).bool()
    forbidden = ~allowed[:, :vocab]
    if forbidden.shape[1] < vocab:  # ids that the model has, but not the tokenizer
        forbidden = torch.nn.functional.pad(forbidden, (0, vocab - forbidden.shape[1]), value=True)
    if where is None:
        return logits.masked_fill_(forbidden, float("-inf"))
    logits[where] = logits[where].masked_fill_(forbidden, float("-inf"))
    return logits
