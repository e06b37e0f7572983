"""Trains the demo model: `python -m examples.demo_model.train --out build/demo`. Goes on where it was stopped."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer
from tqdm import tqdm

from examples.demo_model.chat import Chat
from examples.demo_model.layout import make_layout
from examples.demo_model.mix import training_items
from examples.demo_model.model import DRAFT, DemoModel, Shape, save_model
from examples.demo_model.muon import Muon
from examples.demo_model.tokenizer import save_tokenizer, special_ids, train_tokenizer
from examples.demo_model.workers import Batch, Workers

CHECKPOINT: Final = "checkpoint.pt"
LONGEST: Final = 640
"""Longer conversations, one in ten thousand, are left out."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how fast to learn."""

    steps: int = 4440
    step_items: int = 80
    batch_tokens: int = 2400
    """Tokens computed at once by a thread."""
    matrix_rate: float = 0.02
    other_rate: float = 3e-3
    warm_up: int = 60
    decay_from: float = 0.35
    """Share of the steps after which the rates fall, in a line, to nothing."""
    height: float = 1.0
    """Share of the rates at their highest."""
    run: int = 1
    """Whose mixture of skills: the first run's or the second's."""
    seed: int = 0
    save_every_s: float = 180.0


SMOKE: Final = Plan(steps=100, step_items=24, warm_up=5)
SECOND: Final = Plan(steps=1500, step_items=48, warm_up=50, decay_from=0.0, height=0.35, run=2, seed=1)
"""Learning on: lower rates, and conversations the first run has not seen."""


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="folder of the model and its checkpoint")
    parser.add_argument("--steps", type=int, help=f"default {Plan().steps}")
    parser.add_argument("--seed", type=int, help="of the conversations; default 0, of a second run 1")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--draft", action="store_true", help="the small model that drafts for the other one")
    parser.add_argument("--smoke", action="store_true", help="a minute of training, to see that everything works")
    parser.add_argument(
        "--continue-from",
        type=Path,
        metavar="FOLDER",
        help="learn on from the finished run in this folder, which stays as it is",
    )
    parser.add_argument("--tokenizer", type=Path, help="folder whose tokenizer to take instead of learning one")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the threads are our own: each computes batches of its own
    plan = SECOND if arguments.continue_from else SMOKE if arguments.smoke else Plan()
    given = {name: getattr(arguments, name) for name in ("steps", "seed") if getattr(arguments, name) is not None}
    plan = replace(plan, **given)
    if arguments.continue_from:
        begin_behind(arguments.continue_from, arguments.out)
    elif arguments.tokenizer:
        tokenizer = Tokenizer.from_file(str(arguments.tokenizer / "tokenizer.json"))
        save_tokenizer(tokenizer, arguments.out / "model", Shape().max_position_embeddings)
    train(arguments.out, plan, DRAFT if arguments.draft else Shape(), arguments.threads)


def train(out: Path, plan: Plan, shape: Shape, threads: int = 1, quiet: bool = False) -> float:
    """Train, or go on, until the plan is done; writes the model into `out` and returns the last step's loss."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer(out, shape, plan.seed)
    model = DemoModel(shape)
    model.initialise(plan.seed)
    model.to(device)
    optimizers = _optimizers(model, plan)
    begun = _restore(out / CHECKPOINT, model, optimizers)
    workers = Workers(model, threads)
    chat = Chat(tokenizer)
    saved, loss = time.monotonic(), float("nan")
    bar = tqdm(range(begun, plan.steps), initial=begun, total=plan.steps, unit="step", disable=quiet, mininterval=2)
    for step in bar:
        started = time.monotonic()
        batches = list(step_batches(chat, plan, step))
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * rate(plan, step)
        loss = learn(model, workers, optimizers, batches)
        num_tokens = sum(int(batch.ids.numel()) for batch in batches)
        bar.set_postfix(loss=f"{loss:.4f}", tokens_s=f"{num_tokens / (time.monotonic() - started):.0f}", refresh=False)
        if time.monotonic() - saved > plan.save_every_s:
            _save(out / CHECKPOINT, model, optimizers, step + 1)
            saved = time.monotonic()
    workers.close()
    _save(out / CHECKPOINT, model, optimizers, plan.steps)
    save_model(model, out / "model", special_ids(tokenizer))
    save_tokenizer(tokenizer, out / "model", shape.max_position_embeddings)
    return loss


def rate(plan: Plan, step: int) -> float:
    """Return the share of the full learning rate at a step: up, level, and down to nothing."""
    rest = (plan.steps - step) / (plan.steps * (1 - plan.decay_from))
    return plan.height * min(1.0, (step + 1) / plan.warm_up, rest)


def step_batches(chat: Chat, plan: Plan, step: int) -> Iterator[Batch]:
    """Yield one step's conversations, those of about equal length together."""
    encoded = [chat.encode(item) for item in training_items(plan.seed, step, plan.step_items, plan.run)]
    encoded = sorted((pair for pair in encoded if len(pair[0]) <= LONGEST), key=lambda pair: len(pair[0]))
    rows: list[tuple[list[int], list[bool]]] = []
    for pair in encoded:
        rows.append(pair)
        if sum(len(ids) for ids, _ in rows) > plan.batch_tokens:
            yield batch_of(rows)
            rows = []
    if rows:
        yield batch_of(rows)


def learn(model: DemoModel, workers: Workers, optimizers: list[Any], batches: list[Batch]) -> float:
    """Take one step on the mean loss of all learnt tokens and return it."""
    loss = workers.gradients(batches)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return loss


def batch_of(rows: list[tuple[list[int], list[bool]]]) -> Batch:
    """Return conversations, as `Chat.encode` gives them and the shortest first, as one batch."""
    ids = [token for tokens, _ in rows for token in tokens[:-1]]
    targets = [
        token if said else -1 for tokens, learnt in rows for token, said in zip(tokens[1:], learnt[1:], strict=True)
    ]
    return Batch(torch.tensor(ids), torch.tensor(targets), make_layout([len(tokens) - 1 for tokens, _ in rows]))


def begin_behind(first: Path, out: Path) -> None:
    """Let the run in `out` begin with what the one in `first` has learnt; one that has begun goes on."""
    if (out / CHECKPOINT).exists():
        return
    (out / "model").mkdir(parents=True, exist_ok=True)
    save_tokenizer(
        Tokenizer.from_file(str(first / "model" / "tokenizer.json")), out / "model", Shape().max_position_embeddings
    )
    state = torch.load(first / CHECKPOINT, weights_only=True)
    torch.save(state | {"step": 0}, out / CHECKPOINT)


def _tokenizer(out: Path, shape: Shape, seed: int) -> Tokenizer:
    """Return the tokenizer of the folder, or a new one for it."""
    path = out / "model" / "tokenizer.json"
    if not path.exists():
        save_tokenizer(train_tokenizer(shape.vocab_size, seed), out / "model", shape.max_position_embeddings)
    return Tokenizer.from_file(str(path))


def _optimizers(model: DemoModel, plan: Plan) -> list[Any]:
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim < 2 or "embed" in name]
    optimizers = [
        Muon(matrices, lr=plan.matrix_rate),
        torch.optim.AdamW(others, lr=plan.other_rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    return optimizers


def _save(path: Path, model: DemoModel, optimizers: list[Any], step: int) -> None:
    state = {"model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers], "step": step}
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)  # a run killed while it writes keeps the older one


def _restore(path: Path, model: DemoModel, optimizers: list[Any]) -> int:
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return int(state["step"])


if __name__ == "__main__":
    main()
