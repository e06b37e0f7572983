"""Trains the demo model: `python -m examples.demo_model.train --out build/demo`.

Goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer
from tqdm import tqdm

from examples.demo_model.chat import Chat
from examples.demo_model.compute import PLAIN, compiled
from examples.demo_model.layout import Row
from examples.demo_model.mix import training_groups
from examples.demo_model.model import DRAFT, DemoModel, Shape, save_model
from examples.demo_model.muon import Muon
from examples.demo_model.tokenizer import save_tokenizer, special_ids, train_tokenizer
from examples.demo_model.workers import Workers, step_gradients

CHECKPOINT: Final = "checkpoint.pt"
LONGEST: Final = 640
"""Longer conversations, one in ten thousand, are left out."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how fast to learn."""

    steps: int = 5000
    step_items: int = 56
    matrix_rate: float = 0.02
    other_rate: float = 3e-3
    warm_up: int = 60
    decay_from: float = 0.35
    """Share of the steps after which the rates fall, in a line, to nothing."""
    seed: int = 0
    save_every_s: float = 180.0


SMOKE: Final = Plan(steps=100, step_items=24, warm_up=5)


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("build/demo"),
        help="folder of the model and its checkpoint",
    )
    parser.add_argument("--steps", type=int, help=f"default {Plan().steps}")
    parser.add_argument("--seed", type=int, help="of the conversations, default 0")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--draft", action="store_true", help="the small model that drafts for the other one"
    )
    parser.add_argument(
        "--smoke", action="store_true", help="a minute of training, to see that everything works"
    )
    parser.add_argument(
        "--tokenizer", type=Path, help="use the tokenizer of this folder instead of training one"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    given = {
        name: getattr(arguments, name)
        for name in ("steps", "seed")
        if getattr(arguments, name) is not None
    }
    plan = replace(SMOKE if arguments.smoke else Plan(), **given)
    if arguments.tokenizer:
        tokenizer = Tokenizer.from_file(str(arguments.tokenizer / "tokenizer.json"))
        save_tokenizer(tokenizer, arguments.out / "model", Shape().max_position_embeddings)
    try:
        train(
            arguments.out,
            plan,
            DRAFT if arguments.draft else Shape(),
            arguments.threads,
            not arguments.smoke,
        )
    except KeyboardInterrupt:
        sys.exit("Stopped. The same command goes on from the last checkpoint.")


def train(
    out: Path,
    plan: Plan,
    shape: Shape,
    threads: int = 1,
    compiles: bool = False,
    quiet: bool = False,
) -> float:
    """Train, or go on, until the plan is done; writes the model into `out` and returns the last
    step's loss.

    threads: processes that compute gradients; with 1, it is this one. compiles: takes half a minute
    before the first step, and makes each shorter.
    """
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer(out, shape, plan.seed)
    model = DemoModel(shape)
    model.initialise(plan.seed)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    optimizers = _optimizers(model, plan)
    begun = _restore(out / CHECKPOINT, model, optimizers)
    rows = partial(step_rows, str(out / "model"), plan)
    compiles = compiles and shutil.which("c++") is not None  # what torch.compile calls
    workers = (
        Workers(model, rows, begun, threads, compiles)
        if threads > 1 and not torch.cuda.is_available()
        else None
    )
    compute = compiled() if compiles else PLAIN
    saved = time.monotonic()
    loss = float("nan")
    bar = tqdm(
        range(begun, plan.steps),
        initial=begun,
        total=plan.steps,
        unit="step",
        disable=quiet,
        mininterval=2,
    )
    for step in bar:
        started = time.monotonic()
        loss, num_tokens = (
            workers.gradients() if workers else step_gradients(model, rows(step), compute)
        )
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * rate(plan, step)
            optimizer.step()
            optimizer.zero_grad()
        bar.set_postfix(
            loss=f"{loss:.4f}",
            tokens_s=f"{num_tokens / (time.monotonic() - started):.0f}",
            refresh=False,
        )
        if time.monotonic() - saved > plan.save_every_s:
            _save(out / CHECKPOINT, model, optimizers, step + 1)
            saved = time.monotonic()
    if workers:
        workers.close()
    _save(out / CHECKPOINT, model, optimizers, plan.steps)
    save_model(model, out / "model", special_ids(tokenizer))
    save_tokenizer(tokenizer, out / "model", shape.max_position_embeddings)
    return loss


def rate(plan: Plan, step: int) -> float:
    """Return the share of the full learning rate at a step: up, level, and down to nothing."""
    rest = (plan.steps - step) / (plan.steps * (1 - plan.decay_from))
    return min(1.0, (step + 1) / plan.warm_up, rest)


def step_rows(folder: str, plan: Plan, step: int) -> list[Row]:
    """Return one step's conversations as the tokenizer in a folder cuts them."""
    chat = _chat(folder)
    rows = [chat.row(items) for items in training_groups(plan.seed, step, plan.step_items)]
    return [row for row in rows if len(row.ids) <= LONGEST]


@cache
def _chat(folder: str) -> Chat:
    return Chat(Tokenizer.from_file(f"{folder}/tokenizer.json"))


def _tokenizer(out: Path, shape: Shape, seed: int) -> Tokenizer:
    """Return the tokenizer of the folder, or a new one for it."""
    path = out / "model" / "tokenizer.json"
    if not path.exists():
        save_tokenizer(
            train_tokenizer(shape.vocab_size, seed), out / "model", shape.max_position_embeddings
        )
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
    state = {
        "model": model.state_dict(),
        "optimizers": [o.state_dict() for o in optimizers],
        "step": step,
    }
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
