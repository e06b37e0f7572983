"""Calibration: mean squares of the inputs of linear layers while the model reads a text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from core.api import ConfigError, EngineConfig, SamplingParams
from core.api.config import read_option_text
from core.models.layers.experts import Experts
from core.models.layers.linear import Linear

if TYPE_CHECKING:
    from core.api.outputs import TokensPrompt
    from core.api.plugins import LoadedRegistry

LENGTH: Final = 512
"""Tokens per forward pass."""
LEAST: Final = 32
MAX_TOKENS: Final = 128 * LENGTH


class Inputs:
    """Mean squares of each layer's inputs, [in], by weight prefix."""

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self._counts: dict[str, int] = {}

    def watch(self, model: nn.Module) -> list[Any]:
        """Attach hooks to all linear layers and experts; return a function that removes them."""
        handles: list[Any] = []
        for module in model.modules():
            if isinstance(module, (Linear, Experts)):
                handles.append(module.register_forward_pre_hook(self._hook(module)))
        return handles

    def means(self) -> dict[str, torch.Tensor]:
        """Return the mean squares."""
        return {name: found / self._counts[name] for name, found in self._sums.items()}

    def _hook(self, module: Any) -> Callable[[nn.Module, tuple[torch.Tensor, ...]], None]:
        """Return a hook that adds up squares.

        The inputs of the experts' second product are internal and not covered.
        """
        names = [name for name, part in module.parts.items() if part.matrix != "down"]

        def add(_: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
            squares = given[0].detach().float().flatten(0, -2).square().sum(0)
            for name in names:
                self._sums[name] = self._sums.get(name, 0) + squares
                self._counts[name] = self._counts.get(name, 0) + given[0].shape[:-1].numel()

        return add


def read_text(
    path: Path, config: EngineConfig, registry: LoadedRegistry
) -> dict[str, torch.Tensor]:
    """Return the mean squares of inputs for a text.

    Raises `ConfigError` for a text that is too short.
    """
    from core import LLM  # lazy: only needed here

    text = read_option_text("--scales", path)
    inputs = Inputs()
    with LLM.from_config(config, registry) as llm:
        tokenizer = llm.get_tokenizer()
        if tokenizer is None:
            raise ConfigError("--scales needs a tokenizer, and this model has none.")
        tokens = tokenizer.encode(text)[:MAX_TOKENS]
        length = min(LENGTH, config.model.max_model_len or LENGTH)
        pieces = [tokens[start : start + length - 1] for start in range(0, len(tokens), length - 1)]
        prompts: list[TokensPrompt] = [
            {"prompt_token_ids": piece} for piece in pieces if len(piece) >= LEAST
        ]
        if not prompts:
            raise ConfigError(
                f"--scales {path} has {len(tokens)} tokens; expected at least {LEAST}."
            )
        (hooks,) = llm.apply_model(inputs.watch)
        llm.generate(prompts, SamplingParams(max_tokens=1), use_tqdm=False)
        for hook in hooks:
            hook.remove()
    return inputs.means()
