"""The worker half: sets the logits of forbidden tokens to -inf for each constrained row.

A step's tokens are copied to the host asynchronously and sent to the grammar processes, which make
the next masks while the next step's model runs. So async scheduling serves constrained requests
like all others.
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

from builtin_plugins.features.structured_outputs.constrained_outputs import ConstrainedOutputs
from builtin_plugins.features.structured_outputs.grammar_handle import ConstrainedOutput
from builtin_plugins.features.structured_outputs.grammar_pool import GrammarProcessPool
from builtin_plugins.features.structured_outputs.grammar_protocol import PointMasks
from builtin_plugins.features.structured_outputs.grammar_row import Mask
from builtin_plugins.features.structured_outputs.messages import NAME, MaskMessage, StepChanges
from core.api.execution import WorkerParts
from core.api.models import ForwardBatch
from core.api.sampling import SampleRows

_decode: Final = msgspec.msgpack.Decoder(StepChanges).decode
_encode: Final = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class _StepRow:
    """A constrained row of a step."""

    output: ConstrainedOutput
    points: list[int]
    """Indices of its sampling points among the step's."""
    draft_tokens: list[int]


@dataclass(frozen=True, slots=True)
class _Sampled:
    """The constrained rows of a step that had masks, and the indices of their sampled tokens."""

    rows: list[_StepRow]
    token_ids: torch.Tensor
    row_index: torch.Tensor
    length_index: torch.Tensor


class MaskWorker:
    """Applies the masks of a step's constrained rows, one per sampling point."""

    name = NAME

    def __init__(self, pool: GrammarProcessPool, *, serves: bool = False) -> None:
        """`serves`: load the grammar library ahead of time; the start does not wait for it."""
        self._pool = pool
        if serves and pool.settings.warm_up:
            pool.warm_up()
        self._outputs: ConstrainedOutputs | None = None
        """None on ranks that do not sample."""
        self._thread: ThreadPoolExecutor | None = None
        self._sending: Future[None] | None = None
        """Transfer of the last step's tokens to the grammar processes."""
        self._sampled: _Sampled | None = None
        self._messages: list[MaskMessage] = []
        self._payload: bytes | None = None
        """Last applied payload."""
        self._unsure: set[int] = set()
        """Rows with draft tokens in their last step: only the device knows their length."""

    def attach(self, parts: WorkerParts) -> None:
        """Start on the ranks that sample: those with the last layers."""
        if parts.pipeline.is_last:
            self.begin_with(parts.send, parts.group.rank)
            self._pool.is_local = True
        else:
            self._pool.close()

    def begin_with(self, send: Callable[[bytes], None], rank: int = 0) -> None:
        """Start with a function that sends messages to the scheduler half."""
        self._outputs = ConstrainedOutputs(
            self._pool, lambda messages: send(_encode(messages)), rank
        )

    def close(self) -> None:
        """End all grammar processes."""
        self._pool.close()

    def before_forward(self, batch: ForwardBatch, payload: bytes | None) -> None:
        """Apply the step's changes of constrained rows."""
        self._apply(payload)

    def _apply(self, payload: bytes | None) -> None:
        if payload is not None and payload is not self._payload and self._outputs is not None:
            self._payload = payload
            self._outputs.update(_decode(payload))

    def before_sample(
        self, logits: torch.Tensor, rows: SampleRows, payload: bytes | None
    ) -> torch.Tensor:
        """Mask the logits of constrained rows; rows with late masks are reported."""
        outputs = self._outputs
        if outputs is None:
            return logits
        points = [i for i, row in enumerate(rows.rows) if row in outputs]
        if not points:
            return logits
        if self._sending is not None:
            self._sending.result()
            self._sending = None
        outputs.begin_wait()
        step_rows = self._request(outputs, rows, points)
        outputs.wait([each.output for each in step_rows])
        masks: list[Mask] = []
        masked: list[int] = []
        found: list[_StepRow] = []
        for row in step_rows:
            if row.output.is_late or row.output.error is not None:
                self._messages.append(outputs.late_message(row.output))
                continue
            found.append(row)
            masks.append(row.output.mask)
            masks += [np.frombuffer(more, np.int32) for more in row.output.more]
            masked += row.points
        if not masked:
            return logits
        where = torch.tensor(masked, device=logits.device)
        preferred = preferred_starts(logits, [row for row in found if row.output.optional])
        self._sampled = _Sampled(
            found, rows.token_ids, rows.row_index[where], rows.length_index[where]
        )
        packed = np.stack(masks)  # [n, words] int32
        logits = mask_rows(logits, packed, None if len(masked) == len(rows.rows) else where)
        for point, tokens, values in preferred:
            logits[point, tokens] = values
        return logits

    def _request(
        self, outputs: ConstrainedOutputs, rows: SampleRows, points: list[int]
    ) -> list[_StepRow]:
        """Return the constrained rows; request the masks of those with several sampling points."""
        lengths, tokens = self._known(rows, points)
        step_rows: list[_StepRow] = []
        requested: list[tuple[ConstrainedOutput, PointMasks]] = []
        for number, group in groupby(range(len(points)), key=lambda k: rows.rows[points[k]]):
            own = [*group]
            output = outputs[number]
            length = lengths[own[0]]
            draft_tokens = [tokens[k] for k in own[:-1]]
            output.more = []
            step_rows.append(_StepRow(output, [points[k] for k in own], draft_tokens))
            has_changed = bool(draft_tokens) or length != output.length
            if tokens and not output.is_late and has_changed:
                back = max(0, output.length - length)
                fresh = rows.token_ids[number, output.length : length].tolist()
                requested.append((output, PointMasks(output.number, back, fresh, draft_tokens)))
                output.length = length
        if requested:
            outputs.wait([output for output, _ in requested])  # the previous masks
            outputs.request_points(requested)
        return step_rows

    def _known(self, rows: SampleRows, points: list[int]) -> tuple[list[int], list[int]]:
        """Return, for each point, the number of tokens before it and its draft token.

        Only the device knows how many draft tokens were accepted. Without any nothing is read back
        and the second list is empty; the lengths are then exact for new rows, and other rows have
        counted their own.
        """
        drafts = getattr(rows, "points", None) or ()
        speculative = {rows.rows[i] for i in points if drafts and drafts[i]}
        sampled = {rows.rows[i] for i in points}
        is_known = not speculative and self._unsure.isdisjoint(sampled)
        self._unsure = (self._unsure - sampled) | speculative
        if is_known:
            return [rows.lengths[i] for i in points], []
        where = torch.tensor(points, device=rows.token_ids.device)
        lengths = rows.length_index[where]
        tokens = rows.token_ids[rows.row_index[where], lengths]
        known: list[list[int]] = torch.stack((lengths, tokens)).tolist()
        return known[0], known[1]

    def after_sample(self, payload: bytes | None) -> bytes | None:
        """Request the next step's masks; return the messages about this step's late ones."""
        self._apply(payload)
        sampled = self._sampled
        self._sampled = None
        if sampled is not None and self._outputs is not None:
            self._advance(self._outputs, sampled)
        messages = self._messages
        self._messages = []
        return _encode(messages) if messages else None

    def _advance(self, outputs: ConstrainedOutputs, sampled: _Sampled) -> None:
        tokens = sampled.token_ids[sampled.row_index, sampled.length_index]
        if not tokens.is_cuda:
            outputs.advance(_accepted(sampled.rows, tokens))
            return
        tokens = tokens.to("cpu", non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar-masks")
        self._sending = self._thread.submit(_advance_later, outputs, sampled.rows, tokens, event)


def _advance_later(
    outputs: ConstrainedOutputs, rows: list[_StepRow], tokens: torch.Tensor, event: Any
) -> None:
    event.synchronize()
    outputs.advance(_accepted(rows, tokens))


def _accepted(
    rows: list[_StepRow], tokens: torch.Tensor
) -> list[tuple[ConstrainedOutput, list[int]]]:
    """Return each row's valid tokens: those up to the first wrong draft token."""
    sampled = iter(tokens.tolist())
    accepted: list[tuple[ConstrainedOutput, list[int]]] = []
    for row in rows:
        own = [next(sampled) for _ in row.points]
        count = len(row.draft_tokens)
        for number, (draft, token) in enumerate(zip(row.draft_tokens, own, strict=False)):
            if draft != token:
                count = number
                break
        accepted.append((row.output, own[: 1 + count]))
    return accepted


def preferred_starts(
    logits: torch.Tensor, rows: list[_StepRow]
) -> list[tuple[int, torch.Tensor, torch.Tensor]]:
    """Return the logits of tokens that start optional reasoning, by sampling point.

    They are -inf unless the model prefers one of them to every other token.
    """
    found = []
    for row in rows:
        point = row.points[0]
        tokens = torch.tensor(row.output.optional, device=logits.device)
        values = logits[point, tokens]
        is_preferred = values.max() == logits[point].max()
        found.append((point, tokens, values.masked_fill(~is_preferred, float("-inf"))))
    return found


def mask_rows(
    logits: torch.Tensor, packed: np.ndarray[Any, Any], where: torch.Tensor | None
) -> torch.Tensor:
    """Return logits [n, vocab] with -inf where a mask bit is 0; only rows in `where` change."""
    vocab = logits.shape[1]
    if logits.is_cuda:
        words = torch.from_numpy(packed).to(logits.device, non_blocking=True)
        shifts = torch.arange(32, device=logits.device, dtype=torch.int32)
        allowed = ((words[:, :, None] >> shifts) & 1).flatten(1).bool()
    else:
        bits = np.unpackbits(packed.view(np.uint8), axis=1, bitorder="little")
        allowed = torch.from_numpy(bits).bool()
    forbidden = ~allowed[:, :vocab]
    if forbidden.shape[1] < vocab:  # ids of the model beyond the tokenizer's
        padding = (0, vocab - forbidden.shape[1])
        forbidden = torch.nn.functional.pad(forbidden, padding, value=True)
    if where is None:
        return logits.masked_fill_(forbidden, float("-inf"))
    logits[where] = logits[where].masked_fill_(forbidden, float("-inf"))
    return logits
