"""Trains the demo model's eyes: `python -m examples.demo_model.vision.train --out build/vision`.

The language model stays as it is, so no text answer changes. `name`: the tower learns the labels of
drawings. `read`: soft tokens for labels are found that the language model answers from. Goes on
where it was stopped, and writes the folder of `demo:vision`.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import cos, pi
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer
from torch import nn
from tqdm import tqdm

from builtin_plugins.model_sources.api import LabelTower
from examples.demo_model.evaluate import SHIPPED
from examples.demo_model.items import Draw
from examples.demo_model.muon import Muon
from examples.demo_model.vision.export import save_vision
from examples.demo_model.vision.model import load_language_model, make_tower
from examples.demo_model.vision.task import Loss, Task

PRINT_EVERY: Final = 25
SAVE_EVERY_S: Final = 60


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of the training."""

    name: str
    steps: int
    batch: int
    rate: float
    """Learning rate of AdamW."""
    matrix_rate: float = 0.0
    """Learning rate of the transformer's matrices, by Muon."""
    warm_up: int = 50


STAGES: Final = (
    Stage("name", 1700, 128, 2e-3, 0.02),
    Stage("read", 1000, 32, 2e-3),
)


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/vision"))
    parser.add_argument("--language-model", type=Path, default=SHIPPED)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--smoke", action="store_true", help="two steps a stage")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    arguments.out.mkdir(parents=True, exist_ok=True)
    folder: Path = arguments.language_model
    language_model = load_language_model(folder)
    tower = make_tower(language_model.config.hidden_size)
    task = Task(tower, language_model, Tokenizer.from_file(str(folder / "tokenizer.json")))
    for stage in STAGES:
        small = replace(stage, steps=2, batch=4)
        run(arguments.out, task, small if arguments.smoke else stage)
    save_vision(tower, folder, arguments.out / "model")


def run(out: Path, task: Task, stage: Stage) -> None:
    """Train one stage to its end, from where it was stopped."""
    loss: Callable[[Draw, int], Loss] = getattr(task, stage.name)
    optimizers = _optimizers(task.tower, stage)
    file = out / f"{stage.name}.pt"
    begun = 0
    if file.exists():
        state = torch.load(file, weights_only=True)
        task.tower.load_state_dict(state["tower"])
        for optimizer, stored in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(stored)
        begun = state["step"]
    saved = time.monotonic()
    scores: list[dict[str, float]] = []
    for step in tqdm(range(begun, stage.steps), initial=begun, total=stage.steps, disable=None):
        share = min((step + 1) / stage.warm_up, 0.5 + 0.5 * cos(pi * step / stage.steps))
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group["lr"] = group["initial_lr"] * share
        draw = Draw(random.Random(f"{stage.name} {step}"), evaluation=False)
        value, shares = loss(draw, stage.batch)
        value.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(task.tower.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        scores = [*scores[1 - PRINT_EVERY :], shares]
        if (step + 1) % PRINT_EVERY == 0:
            means = {name: sum(each[name] for each in scores) / len(scores) for name in shares}
            text = "  ".join(f"{name} {mean:.3f}" for name, mean in means.items())
            tqdm.write(f"{stage.name} {step + 1}: loss {value.item():.3f}  {text}")
        if time.monotonic() - saved > SAVE_EVERY_S or step + 1 == stage.steps:
            state = {
                "tower": task.tower.state_dict(),
                "optimizers": [optimizer.state_dict() for optimizer in optimizers],
                "step": step + 1,
            }
            torch.save(state, file.with_suffix(".new"))
            file.with_suffix(".new").replace(file)
            saved = time.monotonic()


def _optimizers(tower: LabelTower, stage: Stage) -> list[Any]:
    """Return the optimizers of a stage: the other stage's parameters have no gradient."""
    matrices = [p for p in tower.transformer.encoder.parameters() if p.ndim == 2]
    known = {id(p) for p in matrices}
    others = [p for p in tower.parameters() if id(p) not in known]
    betas = (0.9, 0.98) if stage.matrix_rate else (0.9, 0.999)
    optimizers: list[Any] = [torch.optim.AdamW(others, lr=stage.rate, betas=betas)]
    if stage.matrix_rate:
        optimizers.append(Muon(matrices, lr=stage.matrix_rate))
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        group["initial_lr"] = group["lr"]
    return optimizers


if __name__ == "__main__":
    main()
