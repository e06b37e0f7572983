"""MLP speculators: a recurrent state starts as the target's hidden state and reads draft tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.nn.functional as F
from torch import nn

from builtin_plugins.speculators.heads import HeadSpeculator
from core.api import ConfigError
from core.model_spec.kv import LayerKV
from core.models.layers.weights import WeightMap, assign_weight, empty_parameter

if TYPE_CHECKING:
    from builtin_plugins.speculators.contract import DraftRow
    from core.api.execution import LoadedParts
    from core.api.models import BuildContext
    from core.model_spec.decoder import DecoderSpec

RENAME: Final = ((r"^speculator\.", ""),)
EPS: Final = 1e-6


class MlpSpeculator(HeadSpeculator):
    """Method `mlp_speculator`: drafts up to `n_predict` tokens. Not sharded over ranks."""

    supports_trees = False

    def _build(self, parts: LoadedParts, spec: DecoderSpec) -> Sequence[LayerKV]:
        source, config = self._checkpoint()
        self._head = SpeculatorMlp(config, spec, parts.context)
        self._load_weights(self._head.weights, source)
        return []

    def propose(self, rows: Sequence[DraftRow]) -> list[list[int]]:
        """Return the top tokens of each row."""
        drafts: list[list[int]] = [[] for _ in rows]
        indices, hidden = self._last_hidden(rows)
        if hidden is not None:
            last_tokens = [int(rows[index].tokens[-1]) for index in indices]
            last = torch.tensor(last_tokens, device=hidden.device)
            count = max(rows[index].max_draft_tokens for index in indices)
            best = self._head(hidden, last, count).tolist()
            for index, tokens in zip(indices, best, strict=True):
                drafts[index] = tokens[: rows[index].max_draft_tokens]
        return drafts


class SpeculatorMlp:
    """Embedding, projection, norm and head of each step; `tie_weights` shares them."""

    def __init__(self, config: Mapping[str, Any], spec: DecoderSpec, context: BuildContext) -> None:
        fields = ("n_predict", "vocab_size")
        missing = [name for name in fields if not isinstance(config.get(name), int)]
        if missing:
            raise ConfigError(
                f"--speculative-config.model: its config.json needs {missing[0]}, an integer."
            )
        self.steps = int(config["n_predict"])
        vocab = int(config["vocab_size"])
        width = int(config.get("emb_dim") or spec.hidden_size)
        inner = int(config.get("inner_dim") or 0) or width
        if width != spec.hidden_size or vocab != spec.vocab_size:
            raise ConfigError(
                f"--speculative-config.model: got hidden size {width} and {vocab} tokens; expected "
                f"the target's {spec.hidden_size} and {spec.vocab_size}. Use a head of this model."
            )
        state_weight = 0.5 ** (0.5 / self.steps)
        self._token_weight = math.sqrt((1 - state_weight**2) * (inner / 2)) / state_weight
        self._scales = bool(config.get("scale_input", False))
        self.weights = weights = WeightMap(rename=RENAME)
        shapes = {
            "emb.{}.weight": (vocab, inner),
            "proj.{}.weight": (inner, width),
            "ln.{}.weight": (inner,),
            "ln.{}.bias": (inner,),
            "head.{}.weight": (vocab, inner),
        }
        tied = bool(config.get("tie_weights", False))
        self._parts: list[list[nn.Parameter]] = []
        for step in range(self.steps):
            parameters = []
            for index, (name, shape) in enumerate(shapes.items()):
                # The first projection reads the target's hidden state, so it is never shared.
                num_own = 2 if name.startswith("proj") else 1
                if tied and step >= num_own:
                    parameters.append(self._parts[-1][index])
                    # The checkpoint may hold a copy.
                    weights.add_alternative(name.format(step), None, lambda tensor: None, of=())
                    continue
                own_shape = (inner, inner) if name.startswith("proj") and step else shape
                parameter = empty_parameter(*own_shape, dtype=context.dtype)
                parameters.append(parameter)
                weights.add(name.format(step), own_shape, partial(assign_weight, parameter))
            self._parts.append(parameters)

    def __call__(self, hidden: torch.Tensor, tokens: torch.Tensor, count: int) -> torch.Tensor:
        """Return the top tokens after `tokens` [n], as [n, min(count, n_predict)]."""
        state = hidden
        drafts = []
        if self._scales:
            state = _rms_norm(state) / math.sqrt(2)
        for embedding, projection, weight, bias, head in self._parts[:count]:
            embedded = self._token_weight * F.embedding(tokens, embedding)
            state = F.linear(state, projection) + embedded
            state = F.gelu(_rms_norm(state) * weight + bias)
            tokens = F.linear(state, head).argmax(dim=-1)
            drafts.append(tokens)
        return torch.stack(drafts, dim=1)


def _rms_norm(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)
