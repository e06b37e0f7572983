"""MLP speculators: a state that begins as the model's hidden state, and takes in one guessed token
after the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.nn.functional as F
from torch import nn

from builtin_plugins.speculators.heads import Heads
from core.api import ConfigError, LayerKV
from core.models.layers.weights import WeightMap, empty_parameter
from core.models.layers.weights import place as put

if TYPE_CHECKING:
    from core.api import BuildContext, DecoderSpec, DraftRow
    from core.contracts.scheduling import LoadedParts

RENAME: Final = ((r"^speculator\.", ""),)
EPS: Final = 1e-6


class MlpSpeculator(Heads):
    """Guesses as many tokens as it was made for. Every rank computes all of it."""

    branches = False

    def _build(self, parts: LoadedParts, spec: DecoderSpec) -> Sequence[LayerKV]:
        source, stated = self._checkpoint()
        self._head = SpeculatorMlp(stated, spec, parts.context)
        self._fill(self._head.weights, source)
        return []

    def drafts(self, rows: Sequence[DraftRow]) -> list[list[int]]:
        """Return what it finds most likely, token by token."""
        drafts: list[list[int]] = [[] for _ in rows]
        places, hidden = self._last_hidden(rows)
        if hidden is not None:
            last = torch.tensor([int(rows[at].tokens[-1]) for at in places], device=hidden.device)
            most = max(rows[at].most for at in places)
            for at, best in zip(places, self._head(hidden, last, most).tolist(), strict=True):
                drafts[at] = best[: rows[at].most]
        return drafts


class SpeculatorMlp:
    """For each token an embedding, a product, a norm and a head; equal ones where config.json says
    `tie_weights`.
    """

    def __init__(self, stated: Mapping[str, Any], spec: DecoderSpec, context: BuildContext) -> None:
        fields = ("n_predict", "vocab_size")
        missing = [name for name in fields if not isinstance(stated.get(name), int)]
        if missing:
            raise ConfigError(
                f"--speculative-config.model: its config.json states no {missing[0]}, which is a "
                "number."
            )
        self.steps = int(stated["n_predict"])
        vocab = int(stated["vocab_size"])
        width = int(stated.get("emb_dim") or spec.hidden_size)
        inner = int(stated.get("inner_dim") or 0) or width
        if width != spec.hidden_size or vocab != spec.vocab_size:
            raise ConfigError(
                f"--speculative-config.model reads hidden states of {width} numbers and has "
                f"{vocab} tokens, the model "
                f"{spec.hidden_size} and {spec.vocab_size}: it is made for another model."
            )
        share = 0.5 ** (0.5 / self.steps)
        self._token_weight = math.sqrt((1 - share**2) * (inner / 2)) / share
        self._scales = bool(stated.get("scale_input", False))
        self.weights = weights = WeightMap(rename=RENAME)
        shapes = {
            "emb.{}.weight": (vocab, inner),
            "proj.{}.weight": (inner, width),
            "ln.{}.weight": (inner,),
            "ln.{}.bias": (inner,),
            "head.{}.weight": (vocab, inner),
        }
        tied = bool(stated.get("tie_weights", False))
        self._parts: list[list[nn.Parameter]] = []
        for step in range(self.steps):
            part = []
            for place, (name, shape) in enumerate(shapes.items()):
                first_own = (
                    2 if name.startswith("proj") else 1
                )  # the first product reads the model's hidden state
                if tied and step >= first_own:
                    part.append(self._parts[-1][place])
                    weights.add_instead(
                        name.format(step), None, lambda tensor: None, of=()
                    )  # a copy, which may be there
                    continue
                own = (inner, inner) if name.startswith("proj") and step else shape
                part.append(made := empty_parameter(*own, dtype=context.dtype))
                weights.add(name.format(step), own, partial(put, made))
            self._parts.append(part)

    def __call__(self, hidden: torch.Tensor, tokens: torch.Tensor, most: int) -> torch.Tensor:
        """Return the most likely tokens [n, `most` or as many as it was made for] behind `tokens`
        [n].
        """
        state = hidden
        found = []
        if self._scales:
            state = _of_length_one(state) / math.sqrt(2)
        for embedding, product, weight, bias, head in self._parts[:most]:
            state = F.linear(state, product) + self._token_weight * F.embedding(tokens, embedding)
            state = F.gelu(_of_length_one(state) * weight + bias)
            tokens = F.linear(state, head).argmax(dim=-1)
            found.append(tokens)
        return torch.stack(found, dim=1)


def _of_length_one(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)
