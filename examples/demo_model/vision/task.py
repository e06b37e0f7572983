"""The losses that the tower is trained on: names for pictures, answers for soft tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from builtin_plugins.model_sources.api import LabelTower
from examples.demo_model.chat import END, Chat, token_id
from examples.demo_model.items import Draw, Item
from examples.demo_model.layout import IGNORED
from examples.demo_model.vision.labels import label_loss, label_vectors
from examples.demo_model.vision.model import MEAN, STD
from examples.demo_model.vision.questions import ask
from examples.demo_model.vision.scenes import KINDS, Picture, Scene, make_picture, make_scene

SHARES: Final = (0.16, 0.22, 0.36, 0.26)
"""Share of each kind of picture, in the order of `KINDS`."""
IMAGE: Final = "<image>"
"""Text that stands for a patch of an image."""
Loss = tuple[Tensor, dict[str, float]]
"""A loss, and the shares that are right."""


def pictures(draw: Draw, count: int) -> list[Picture]:
    """Return new pictures of all kinds."""
    return [make_picture(draw, kind) for kind in draw.rng.choices(KINDS, SHARES, k=count)]


def make_scenes(draw: Draw, count: int) -> list[Scene]:
    """Return new scenes of all kinds."""
    return [make_scene(draw, kind) for kind in draw.rng.choices(KINDS, SHARES, k=count)]


def pixels(drawn: Sequence[Picture]) -> Tensor:
    """Return pictures as the processor gives them. [pictures, 3, 64, 64]"""
    stacked = np.stack([np.asarray(picture.image) for picture in drawn])
    values = torch.from_numpy(stacked).permute(0, 3, 1, 2).float() / 255
    return (values - MEAN) / STD


class Task:
    """The tower and the frozen language model, with a loss for each stage."""

    def __init__(self, tower: LabelTower, language_model: Any, tokenizer: Tokenizer) -> None:
        self.tower = tower
        self._language_model = language_model.model
        self._embedding = language_model.get_input_embeddings()
        self._chat = Chat(tokenizer)
        self._tokenizer = tokenizer
        self._end = token_id(tokenizer, END)

    def name(self, draw: Draw, count: int) -> Loss:
        """Return the loss of the labels that the tower gives new pictures."""
        drawn = pictures(draw, count)
        return label_loss(self.tower.scores(pixels(drawn)), [each.scene for each in drawn])

    def read(self, draw: Draw, count: int) -> Loss:
        """Return the loss of answers about new scenes, given as soft tokens of their labels."""
        scenes = make_scenes(draw, count)
        rows = []
        for scene in scenes:
            question = ask(draw, scene)
            content = [{"type": "image"}, {"type": "text", "text": question.text}]
            item = Item("picture", (), [{"role": "user", "content": content}])
            before, after = self._chat.prompt(item).split(IMAGE)
            rows.append((self._ids(after), [*self._ids(question.answer), self._end]))
        length = max(len(prompt) + len(answer) for prompt, answer in rows)
        ids = torch.zeros(len(rows), length, dtype=torch.int64)
        targets = torch.full((len(rows), length), IGNORED)
        for i, (prompt, answer) in enumerate(rows):
            ids[i, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
            targets[i, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
        seen = self.tower.soft_tokens(label_vectors(scenes))
        start = self._embedding(torch.tensor(self._ids(before))).expand(len(rows), -1, -1)
        stream = torch.cat([start, seen, self._embedding(ids)], dim=1)
        hidden = self._language_model(inputs_embeds=stream).last_hidden_state
        hidden = hidden[:, start.shape[1] + seen.shape[1] - 1 : -1]
        known = targets != IGNORED
        logits = hidden[known] @ self._embedding.weight.T
        right = torch.ones_like(known)
        right[known] = logits.argmax(1) == targets[known]
        loss = F.cross_entropy(logits, targets[known])
        return loss, {"answers": right.all(1).float().mean().item()}

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids
