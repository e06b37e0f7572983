"""Sampled tokens on their way from the last pipeline stage to the others.

A stage does not wait for the tokens of a step: it continues with other rows, and writes the tokens
before a step that computes one of their rows again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch

from core.errors import LastStageFailed
from core.model_spec.parallel import Pipeline

WriteTokens = Callable[[torch.Tensor], None]
"""Writes the tokens of one step where later steps read them."""


class _Message:
    """What the last stage sends of one step: [success, tokens, accepted tokens per row]."""

    def __init__(self, inputs: Any, device: str) -> None:
        num_tokens = len(inputs.point_rows)
        drafts = inputs.num_draft_tokens
        size = 1 + num_tokens + (0 if drafts is None else len(drafts))
        self.numbers = torch.zeros(size, dtype=torch.int64, device=device)
        self.tokens = self.numbers[1 : 1 + num_tokens]
        self.accepted = self.numbers[1 + num_tokens :]
        """Empty without draft tokens."""


class TokenExchange:
    """Sends the tokens of each step on the last stage, and receives them on the others.

    `inputs` and `pending` are a worker's inputs and result of one step.
    """

    def __init__(self, pipeline: Pipeline, device: str) -> None:
        self._pipeline = pipeline
        self._device = device
        self._unwritten: deque[tuple[frozenset[int], Callable[[], None]]] = deque()
        """(rows, function that waits for their tokens and writes them), oldest step first."""

    def send(self, inputs: Any, sample: Callable[[], Any]) -> Any:
        """Sample on the last stage, and send the tokens, or that sampling has failed."""
        message = _Message(inputs, self._device)
        try:
            pending = sample()
            message.numbers[0] = 1
            if pending.tokens is not None:
                message.tokens.copy_(pending.tokens)
            if pending.accepted is not None:
                message.accepted.copy_(pending.accepted)
        finally:
            self._pipeline.from_last(message.numbers)
        return pending

    def receive(self, inputs: Any, pending: Any, write: WriteTokens) -> None:
        """Receive the tokens of a step on another stage.

        `pending` then waits for them, and raises `LastStageFailed` if there are none. With draft
        tokens this stage waits, since the next step depends on how many were accepted.
        """
        message = _Message(inputs, self._device)
        wait = self._pipeline.from_last(message.numbers)

        def arrive() -> None:
            wait()
            if not message.numbers[0]:
                raise LastStageFailed

        def write_later() -> None:
            wait()
            write(message.tokens)  # of a failed step: zeros, for rows without a request

        pending.wait = arrive
        if inputs.num_draft_tokens is not None:
            arrive()
            inputs.accepted = message.accepted
            pending.accepted = message.accepted
            pending.rows = inputs.point_rows
            pending.points = inputs.points
            pending.tokens = message.tokens
            write(message.tokens)
        elif inputs.samples:
            self._unwritten.append((frozenset(inputs.point_rows), write_later))

    def write_tokens(self, rows: Iterable[int]) -> None:
        """Write all tokens up to the last ones of these rows; waits for those on their way."""
        if not self._unwritten:
            return  # always so on a single stage
        needed = frozenset(rows)
        while any(not needed.isdisjoint(own) for own, _ in self._unwritten):
            self._unwritten.popleft()[1]()
