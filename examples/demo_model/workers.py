"""Gradients of several batches at once: each thread takes the next batch, so a busy core delays nobody."""

from __future__ import annotations

import copy
import queue
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from examples.demo_model.layout import Layout
from examples.demo_model.model import DemoModel


@dataclass(slots=True)
class Batch:
    """Conversations one behind the other."""

    ids: Tensor  # [tokens]
    targets: Tensor  # [tokens], the next token where the model is to say it, else -1
    layout: Layout


class Workers:
    """Copies of a model that share its weights and have gradients of their own, one for each thread."""

    def __init__(self, model: DemoModel, threads: int) -> None:
        self._model = model
        self._copies = [model]
        for _ in range(threads - 1):
            twin = copy.deepcopy(model)
            for own, shared in zip(twin.parameters(), model.parameters(), strict=True):
                own.data = shared.data
            self._copies.append(twin)
        self._pool = ThreadPoolExecutor(threads)

    def gradients(self, batches: list[Batch]) -> float:
        """Leave the gradient of the mean loss of all learnt tokens in the model and return that loss."""
        total = sum(int((batch.targets >= 0).sum()) for batch in batches)
        waiting: queue.SimpleQueue[Batch] = queue.SimpleQueue()
        for batch in sorted(batches, key=lambda batch: -batch.ids.numel()):
            waiting.put(batch)
        losses = [self._pool.submit(_until_empty, twin, waiting, total) for twin in self._copies]
        summed = sum(loss.result() for loss in losses)
        for twin in self._copies[1:]:
            for own, shared in zip(twin.parameters(), self._model.parameters(), strict=True):
                if own.grad is not None:
                    shared.grad = own.grad if shared.grad is None else shared.grad.add_(own.grad)
                    own.grad = None
        return summed

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


def _until_empty(model: DemoModel, waiting: queue.SimpleQueue[Batch], total: int) -> float:
    device = model.model.embed_tokens.weight.device
    summed = 0.0
    while True:
        try:
            batch = waiting.get_nowait()
        except queue.Empty:
            return summed
        ids, targets, layout = batch.ids.to(device), batch.targets.to(device), batch.layout.to(device)
        with torch.autocast(device.type, torch.bfloat16):
            hidden = model(ids, layout)
            logits = model.logits(hidden[targets >= 0])  # [learnt tokens, vocab]
        loss = F.cross_entropy(logits.float(), targets[targets >= 0], reduction="sum") / total
        loss.backward()  # type: ignore[no-untyped-call]
        summed += float(loss.detach())
