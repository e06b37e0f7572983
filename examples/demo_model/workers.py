"""Gradients of a step on several cores: each process takes a share of its conversations."""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Final

import torch
from torch import Tensor, multiprocessing
from torch.nn import functional as F

from examples.demo_model.compute import PLAIN, Compute, compiled
from examples.demo_model.layout import IGNORED, Layout, Row, make_layout, plain_row
from examples.demo_model.model import DemoModel

BATCH_TOKENS: Final = 1200
"""About as many tokens are computed at once: what a core's cache holds, and enough for its
products.
"""

_WHOLE: Final = 64
"""Batches are filled up to a multiple of this, since products of a new shape cost a CPU a
compilation.
"""


@dataclass(slots=True)
class Batch:
    """Concatenated conversations."""

    ids: Tensor  # [tokens]
    learnt: Tensor  # [learnt tokens and filling], the slots with a learnt next token
    targets: Tensor  # [learnt tokens and filling], these next tokens
    count: int
    """Learnt tokens."""
    layout: Layout


class Workers:
    """Processes that share a model's weights and have gradients of their own."""

    def __init__(
        self,
        model: DemoModel,
        rows: Callable[[int], list[Row]],
        begin: int,
        count: int,
        compiles: bool,
    ):
        self._model = model
        model.share_memory()
        context = multiprocessing.get_context("spawn")
        self._processes: list[BaseProcess] = []
        self._links: list[Connection] = []
        self._gradients: list[list[Tensor]] = []
        for number in range(count):
            ours, theirs = context.Pipe()
            gradients = [_shared(parameter) for parameter in model.parameters()]
            work = (theirs, model, gradients, rows, begin, number, count, compiles)
            self._processes.append(context.Process(target=_work, args=work, daemon=True))
            self._processes[-1].start()
            theirs.close()
            self._links.append(ours)
            self._gradients.append(gradients)

    def gradients(self) -> tuple[float, int]:
        """Leave the gradient of the mean loss of the next step's learnt tokens in the model; return
        the loss and the
        number of the step's tokens, learnt or not."""
        try:
            for link in self._links:
                link.send(None)
            answers: list[tuple[float, int]] = [link.recv() for link in self._links]
        except (EOFError, OSError) as error:
            raise RuntimeError(
                "A process that computes gradients has died, killed or out of memory. The same "
                "command goes on from the "
                "last checkpoint; --threads 1 needs no such processes."
            ) from error
        for parameter, *shares in zip(self._model.parameters(), *self._gradients, strict=True):
            parameter.grad = torch.stack(shares).sum(dim=0)
        return sum(loss for loss, _ in answers), sum(tokens for _, tokens in answers)

    def close(self) -> None:
        """End the processes."""
        for link in self._links:
            link.close()
        for process in self._processes:
            process.join()


def step_gradients(
    model: DemoModel, rows: list[Row], compute: Compute = PLAIN
) -> tuple[float, int]:
    """Add the gradient of the mean loss of all learnt tokens to the model's; return that loss and
    the tokens.
    """
    batches = list(batches_of(rows, 1))
    total = sum(batch.count for batch in batches)
    return sum(gradient(model, batch, total, compute) for batch in batches), sum(
        len(row.ids) for row in rows
    )


def batches_of(rows: list[Row], count: int) -> Iterator[Batch]:
    """Yield batches of about as many tokens each, their number a multiple of count; those of equal
    length together.
    """
    rows = sorted(rows, key=lambda row: len(row.ids))
    tokens = sum(len(row.ids) for row in rows)
    size = tokens / (count * max(1, round(tokens / (count * BATCH_TOKENS))))
    parts: dict[int, list[Row]] = defaultdict(list)
    passed = 0
    for row in rows:
        parts[int((passed + len(row.ids) / 2) / size)].append(row)
        passed += len(row.ids)
    yield from map(batch_of, parts.values())


def batch_of(rows: list[Row]) -> Batch:
    """Return rows, the shortest first, as one batch of a multiple of `_WHOLE` tokens, learnt ones
    as well.
    """
    missing = -sum(len(row.ids) for row in rows) % _WHOLE
    rows = (
        sorted([*rows, plain_row([0] * missing)], key=lambda row: len(row.ids)) if missing else rows
    )
    targets = torch.tensor([token for row in rows for token in row.targets])
    learnt = (targets >= 0).nonzero().squeeze(1)
    learnt = F.pad(learnt, (0, -len(learnt) % _WHOLE))  # with ignored targets
    count = int((targets >= 0).sum())
    targets = torch.where(torch.arange(len(learnt)) < count, targets[learnt], IGNORED)
    ids = torch.tensor([token for row in rows for token in row.ids])
    return Batch(ids, learnt, targets, count, make_layout(rows))


def gradient(model: DemoModel, batch: Batch, total: int, compute: Compute = PLAIN) -> float:
    """Add the gradient of the batch's loss, divided by the learnt tokens of all batches, and return
    that loss.
    """
    embedding = model.model.embed_tokens.weight
    device = embedding.device
    hidden = model(batch.ids.to(device), batch.layout.to(device), compute, torch.bfloat16)
    learnt_hidden = hidden.index_select(0, batch.learnt.to(device))
    loss = compute.loss(learnt_hidden, embedding, batch.targets.to(device)) / total
    loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach())


def _shared(parameter: Tensor) -> Tensor:
    zeros = torch.zeros_like(parameter)
    return zeros.share_memory_()  # type: ignore[no-any-return, no-untyped-call]


def _work(
    link: Connection,
    model: DemoModel,
    gradients: list[Tensor],
    rows: Callable[[int], list[Row]],
    step: int,
    number: int,
    count: int,
    compiles: bool,
) -> None:
    """Compute one share of every requested step, in its own process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    torch.set_num_threads(1)
    compute = compiled() if compiles else PLAIN
    for parameter, own in zip(model.parameters(), gradients, strict=True):
        parameter.grad = own
    while True:
        batches = list(batches_of(rows(step), count))  # made while the weights are being changed
        total = sum(batch.count for batch in batches)
        mine = batches[number::count]
        try:
            link.recv()
        except EOFError:
            return  # the parent process has exited
        for own in gradients:
            own.zero_()
        loss = sum(gradient(model, batch, total, compute) for batch in mine)
        link.send((loss, sum(batch.ids.numel() for batch in mine)))
        step += 1
