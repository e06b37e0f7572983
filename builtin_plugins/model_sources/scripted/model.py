"""The scripted model: implements the `Model` contract with a fixed reply per prompt.

One small attention layer uses the KV cache like any model's, so blocks are allocated, written and
read. The output depends on the prompt and the position only.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from builtin_plugins.model_sources.scripted.script import Reply, Script, ScriptedConfig
from builtin_plugins.model_sources.scripted.tokenizer import END_OF_TURN, ScriptedTokenizer
from core.api import ModelError
from core.api.models import BuildContext, ForwardBatch, Model, ModelSource
from core.model_spec.attention_params import AttentionParams
from core.model_spec.kv import FullAttention, LayerKV
from core.models.dtypes import dtype_name

_PEAK = 60.0
"""Logit of the scripted token: certain at common temperatures, but below a bias of 100."""
_SECOND = 30.0
_NEWLINE = 10
_HEAD_SIZE = 8


@dataclass(frozen=True, slots=True)
class ScriptedArchitecture:
    """`ModuleSpec` of the scripted model."""

    config: ScriptedConfig
    tokenizer: ScriptedTokenizer

    @property
    def vocab_size(self) -> int:
        """Size of the tokenizer's vocabulary."""
        return self.tokenizer.vocab_size

    def build(self, context: BuildContext) -> Model:
        """Return the module."""
        return ScriptedModel(self.config, self.tokenizer, context)


def scripted_architecture(hf_config: Any) -> ScriptedArchitecture:
    """Return the spec for a `ScriptedConfig`. Raises `ModelError` for anything else."""
    if not isinstance(hf_config, ScriptedConfig):
        raise ModelError(
            f"ScriptedModel: got a {type(hf_config).__name__}; expected its own configuration. "
            "Use scripted:."
        )
    source = ModelSource(name="scripted:", architecture="ScriptedModel", hf_config=hf_config)
    return ScriptedArchitecture(hf_config, ScriptedTokenizer(source))


class ScriptedModel(torch.nn.Module):
    """Hidden states are (token, runner-up) pairs, which `logits` converts to peaks."""

    def __init__(
        self, config: ScriptedConfig, tokenizer: ScriptedTokenizer, context: BuildContext
    ) -> None:
        super().__init__()
        self.vocab_size = tokenizer.vocab_size
        dtype = dtype_name(context.dtype)
        self.kv_layers: Sequence[LayerKV] = (
            LayerKV("layers.0", FullAttention(1, _HEAD_SIZE, dtype)),
        )
        self._dtype = context.dtype
        self._attention = context.attention
        self._params = AttentionParams(heads=1, kv_heads=1, head_size=_HEAD_SIZE, scale=1.0)
        self._caches: Sequence[torch.Tensor] = ()
        self._script = Script(tokenizer, config.answers, config.fail_at_token)
        self._step_s = 1.0 / config.tokens_per_second if config.tokens_per_second else 0.0
        self._last_step_s = 0.0
        self._replies: dict[int, tuple[bytes, Reply]] = {}

    def bind_kv(self, caches: Sequence[torch.Tensor]) -> None:
        """Store the KV cache of the only layer."""
        self._caches = caches

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Raise `ModelError` for any tensor: there are no weights."""
        for name, _ in tensors:
            raise ModelError(
                f"the scripted model has no weights; got {name!r}. Remove --load-format."
            )

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Return [num_tokens, 2] float32: the next token after each position and its runner-up, NaN
        to fail.
        """
        history = (
            batch.token_ids.cpu().numpy() if batch.token_ids.is_cuda else batch.token_ids.numpy()
        )
        pairs = np.empty((sum(batch.counts), 2), dtype=np.float32)
        # exact even with draft tokens in flight
        at = 0
        speaking = False
        positions = batch.positions.tolist()
        for row, count, prompt_len in zip(batch.rows, batch.counts, batch.prompt_lens, strict=True):
            start = positions[at]
            self._fill(pairs[at : at + count], history[row], row, start, prompt_len)
            at += count
            speaking = speaking or start + count >= prompt_len
        if speaking and self._step_s:
            self._throttle()
        hidden = torch.from_numpy(pairs).to(batch.input_ids.device)
        # Zero unless a block was never written: NaN there fails the request.
        return hidden + self._read_cache(batch)[:, 0, :1].float() * 0.0

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits [n, vocab]: peaks at token and runner-up, NaN for failed rows."""
        failed = hidden[:, :1].isnan()  # [n, 1]
        ids = hidden.nan_to_num(0.0).long()  # [n, 2]
        logits = torch.zeros(
            hidden.shape[0], self.vocab_size, dtype=torch.float32, device=hidden.device
        )
        logits.scatter_(1, ids[:, 1:], _SECOND).scatter_(1, ids[:, :1], _PEAK)
        return logits.masked_fill_(failed, float("nan"))

    def _fill(
        self, pairs: np.ndarray[Any, Any], tokens: Any, row: int, start: int, prompt_len: int
    ) -> None:
        """Write the pairs of positions start, start+1, ... of one row."""
        num_prompt = min(max(prompt_len - 1 - start, 0), len(pairs))
        pairs[:num_prompt, 0] = tokens[start + 1 : start + 1 + num_prompt]
        pairs[:num_prompt, 1] = END_OF_TURN
        if num_prompt == len(pairs):
            return
        reply = self._reply(row, tokens[:prompt_len])
        length = len(reply.token_ids)
        for i in range(num_prompt, len(pairs)):
            index = start + i + 1 - prompt_len  # index of the generated token
            failing = reply.fail_at_token is not None and index >= reply.fail_at_token - 1
            offset = index % (length + 1)  # repeats the reply if end tokens are ignored
            token = END_OF_TURN if offset == length else reply.token_ids[offset]
            pairs[i] = (
                np.nan if failing else token,
                _NEWLINE if token == END_OF_TURN else END_OF_TURN,
            )

    def _reply(self, row: int, prompt: Any) -> Reply:
        key = prompt.tobytes()
        known = self._replies.get(row)
        if known is None or known[0] != key:
            known = self._replies[row] = (key, self._script.reply(prompt.tolist()))
        return known[1]

    def _read_cache(self, batch: ForwardBatch) -> torch.Tensor:
        states = torch.zeros(
            len(batch.input_ids), 1, _HEAD_SIZE, dtype=self._dtype, device=batch.input_ids.device
        )
        states[:, 0, 0] = batch.positions % 7
        return self._attention.attend(
            self._params,
            torch.zeros_like(states),
            states,
            states,
            self._caches[0],
            batch.attention[0],
        )

    def _throttle(self) -> None:
        wait_s = self._last_step_s + self._step_s - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        self._last_step_s = time.monotonic()
