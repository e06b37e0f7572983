"""The worker half: follows each constrained row through its grammar and keeps logits of what may not come at -inf.

The tokens of a step are copied to the host behind the model's back, and the masks they lead to are made in a thread
while the next step's model runs. So constrained requests are scheduled ahead like all others.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import msgspec
import numpy as np
import torch

from builtin_plugins.structured_outputs.grammars import Grammars
from builtin_plugins.structured_outputs.rows import Row, Rows
from builtin_plugins.structured_outputs.scheduling import NAME, News
from core.api import ForwardBatch, SampleRows

log = logging.getLogger(__name__)
_decode: Final = msgspec.msgpack.Decoder(News).decode


class MaskMaker:
    """Makes masks for all constrained rows of a step at once."""

    name = NAME

    def __init__(self, grammars: Grammars) -> None:
        self._rows = Rows(grammars)
        self._grammars = grammars
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar-masks")
        self._making: Future[None] | None = None
        """The step under way's tokens on their way into the masks."""
        self._sampled: tuple[list[Row], torch.Tensor, torch.Tensor, torch.Tensor] | None = None

    def before_forward(self, batch: ForwardBatch, payload: bytes | None) -> None:
        """Take over which rows are constrained."""
        if payload is not None:
            news = _decode(payload)
            for params in (*news.soon, *(new.params for new in news.new)):
                self._grammars.get(params)
            self._rows.update(news)

    def before_sample(self, logits: torch.Tensor, rows: SampleRows, payload: bytes | None) -> torch.Tensor:
        """Mask the rows that are constrained; the others are not touched."""
        self._sampled = None
        places = [i for i, row in enumerate(rows.rows) if row in self._rows]
        if not places:
            return logits
        if self._making is not None:
            self._making.result()
            self._making = None
        found = [self._rows[rows.rows[i]] for i in places]
        packed = np.stack([row.mask for row in found])  # [n, words] int32
        where = torch.tensor(places, device=logits.device)
        self._sampled = found, rows.token_ids, rows.row_index[where], rows.length_index[where]
        return mask_rows(logits, packed, None if len(places) == len(rows.rows) else where)

    def after_sample(self, payload: bytes | None) -> bytes | None:
        """Begin the masks of the next step."""
        if self._sampled is None:
            return None
        rows, token_ids, row_index, length_index = self._sampled
        tokens = token_ids[row_index, length_index]
        event: Any = None
        if tokens.is_cuda:
            tokens = tokens.to("cpu", non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._making = self._thread.submit(_advance, rows, tokens, event)
        return None


def _advance(rows: list[Row], tokens: torch.Tensor, event: Any) -> None:
    """Take each row on by its token and make its next mask. A fault of the backend costs the row it was called for."""
    if event is not None:
        event.synchronize()
    for row, token in zip(rows, tokens.tolist(), strict=True):
        row.advance(token)


def mask_rows(logits: torch.Tensor, packed: np.ndarray[Any, Any], where: torch.Tensor | None) -> torch.Tensor:
    """Return logits [n, vocab] with -inf where the bit of a row's mask is 0; rows beside `where` stay as they are."""
    vocab = logits.shape[1]
    if logits.is_cuda:
        words = torch.from_numpy(packed).to(logits.device, non_blocking=True)
        shifts = torch.arange(32, device=logits.device, dtype=torch.int32)
        allowed = ((words[:, :, None] >> shifts) & 1).flatten(1).bool()
    else:
        allowed = torch.from_numpy(np.unpackbits(packed.view(np.uint8), axis=1, bitorder="little")).bool()
    forbidden = ~allowed[:, :vocab]
    if forbidden.shape[1] < vocab:  # ids that the model has, but not the tokenizer
        forbidden = torch.nn.functional.pad(forbidden, (0, vocab - forbidden.shape[1]), value=True)
    if where is None:
        return logits.masked_fill_(forbidden, float("-inf"))
    logits[where] = logits[where].masked_fill_(forbidden, float("-inf"))
    return logits
