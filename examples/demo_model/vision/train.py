"""Trains the demo model's eyes: `python -m examples.demo_model.vision.train --out build/vision`.

The language model stays as it is, so no text answer changes. First the tower learns to name what
is drawn, which is cheap; then tower and projector learn through the language model. Goes on where
it was stopped.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import cos, pi
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from examples.demo_model.chat import END, Chat, token_id
from examples.demo_model.evaluate import SHIPPED
from examples.demo_model.items import Draw, Item
from examples.demo_model.layout import IGNORED
from examples.demo_model.muon import Muon
from examples.demo_model.vision.labels import LABELS, LabelHeads
from examples.demo_model.vision.model import MEAN, STD, learnt_parts, make_model
from examples.demo_model.vision.questions import ask
from examples.demo_model.vision.scenes import KINDS, Picture, make_picture

SHARES: Final = (0.18, 0.34, 0.22, 0.26)
"""Share of each kind of picture, in the order of `KINDS`."""
TURN: Final = "<|im_start|>user\n"


@dataclass(frozen=True, slots=True)
class Stage:
    """One of the two parts of the training."""

    name: str
    steps: int
    pictures: int
    rate: float
    """Learning rate of embeddings, norms, biases and the projector."""
    matrix_rate: float
    """Learning rate of the tower's matrices."""
    warm_up: int = 50


NAMING: Final = Stage("naming", 2000, 128, 2e-3, 0.02)
ANSWERING: Final = Stage("answering", 700, 64, 2e-3, 0.002)


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/vision"))
    parser.add_argument("--language-model", type=Path, default=SHIPPED)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--naming-steps", type=int, default=NAMING.steps)
    parser.add_argument("--answering-steps", type=int, default=ANSWERING.steps)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    tokenizer = Tokenizer.from_file(str(arguments.language_model / "tokenizer.json"))
    model = make_model(arguments.language_model, token_id(tokenizer, END))
    task = Task(model, tokenizer)
    run(arguments.out, task, task.naming, replace(NAMING, steps=arguments.naming_steps))
    run(arguments.out, task, task.answering, replace(ANSWERING, steps=arguments.answering_steps))


Loss = Callable[[Draw, int], tuple[Tensor, dict[str, float]]]


def run(out: Path, task: Task, loss: Loss, stage: Stage) -> None:
    """Train one stage to its end."""
    file = out / f"{stage.name}.pt"
    optimizers = _optimizers(task, stage)
    begun = 0
    if file.exists():
        state = torch.load(file, weights_only=True)
        task.parts.load_state_dict(state["parts"])
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
        value, score = loss(draw, stage.pictures)
        value.backward()
        nn.utils.clip_grad_norm_(task.parts.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        scores.append({"loss": value.item(), **score})
        if (step + 1) % 25 == 0 or step + 1 == stage.steps:
            last = scores[-25:]
            means = {name: sum(each[name] for each in last) / len(last) for name in last[0]}
            shown = "  ".join(f"{name} {mean:.3f}" for name, mean in means.items())
            tqdm.write(f"{stage.name} {step + 1}: {shown}")
        if time.monotonic() - saved > 60 or step + 1 == stage.steps:
            state = {
                "parts": task.parts.state_dict(),
                "optimizers": [optimizer.state_dict() for optimizer in optimizers],
                "step": step + 1,
            }
            torch.save(state, file.with_suffix(".new"))
            file.with_suffix(".new").replace(file)
            saved = time.monotonic()


def _optimizers(task: Task, stage: Stage) -> list[Any]:
    matrices = [p for p in task.tower.encoder.parameters() if p.ndim == 2]
    known = {id(p) for p in matrices}
    others = [p for p in task.parts.parameters() if id(p) not in known]
    optimizers = [
        Muon(matrices, lr=stage.matrix_rate),
        torch.optim.AdamW(others, lr=stage.rate, betas=(0.9, 0.98), weight_decay=0.01),
    ]
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        group["initial_lr"] = group["lr"]
    return optimizers


def pictures(draw: Draw, count: int) -> list[Picture]:
    """Return new pictures of all kinds."""
    kinds = draw.rng.choices(KINDS, SHARES, k=count)
    return [make_picture(draw, kind) for kind in kinds]


def pixels(drawn: Sequence[Picture]) -> Tensor:
    """Return pictures as the processor gives them. [pictures, 3, 64, 64]"""
    stacked = np.stack([np.asarray(picture.image) for picture in drawn])
    values = torch.from_numpy(stacked).permute(0, 3, 1, 2).float() / 255
    return (values - MEAN) / STD


class Task:
    """Tower, projector and label heads, with the two losses that they are trained on."""

    def __init__(self, model: Any, tokenizer: Tokenizer) -> None:
        self.model = model
        self.tower = model.model.vision_tower
        self.projector = model.model.multi_modal_projector
        self.heads = LabelHeads()
        self.parts = nn.ModuleDict({**learnt_parts(model), "heads": self.heads})
        self.embedding = model.get_input_embeddings()
        self._chat = Chat(tokenizer)
        self._tokenizer = tokenizer
        self._end = token_id(tokenizer, END)

    def naming(self, draw: Draw, count: int) -> tuple[Tensor, dict[str, float]]:
        """Return the loss of the labels of new pictures, and the share with all of them right."""
        drawn = pictures(draw, count)
        loss, right = self.heads.loss(self._features(drawn), [each.scene for each in drawn])
        shares = dict(zip(LABELS, right.float().mean(0).tolist(), strict=True))
        return loss, {"all": right.all(1).float().mean().item(), **shares}

    def answering(self, draw: Draw, count: int) -> tuple[Tensor, dict[str, float]]:
        """Return the loss of answers about new pictures, and the share that is right."""
        drawn = pictures(draw, count)
        features = self._features(drawn)
        label_loss, named = self.heads.loss(features, [each.scene for each in drawn])
        turn = self._ids(TURN)
        rows = []
        for picture in drawn:
            question = ask(draw, picture.scene)
            item = Item("picture", (), [{"role": "user", "content": "\n" + question.text}])
            item.thinking = draw.chance(0.7)
            prompt = self._ids(self._chat.prompt(item))[len(turn) :]
            rows.append((prompt, [*self._ids(question.answer), self._end]))
        length = max(len(prompt) + len(answer) for prompt, answer in rows)
        ids = torch.zeros(count, length, dtype=torch.int64)
        targets = torch.full((count, length), IGNORED)
        for i, (prompt, answer) in enumerate(rows):
            ids[i, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
            targets[i, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
        start = self.embedding(torch.tensor(turn)).expand(count, -1, -1)
        seen = self.projector(features)
        stream = torch.cat([start, seen, self.embedding(ids)], dim=1)
        hidden = self.model.model.language_model(inputs_embeds=stream).last_hidden_state
        hidden = hidden[:, start.shape[1] + seen.shape[1] - 1 : -1]
        known = targets != IGNORED
        logits = hidden[known] @ self.embedding.weight.T
        loss = F.cross_entropy(logits, targets[known])
        right = torch.ones_like(known)
        right[known] = logits.argmax(1) == targets[known]
        shares = {"answers": right.all(1).float().mean().item()}
        return loss + label_loss, {**shares, "labels": named.all(1).float().mean().item()}

    def _features(self, drawn: Sequence[Picture]) -> Tensor:
        """Return what the projector gets of pictures. [pictures, patches, hidden]"""
        output = self.tower(pixels(drawn), output_hidden_states=True)
        features: Tensor = output.hidden_states[-1]
        return features

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


if __name__ == "__main__":
    main()
