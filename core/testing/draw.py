"""Random weights that keep the size of what passes through a model."""

from __future__ import annotations

from typing import Any, Final

import torch

DRAWN_BUFFERS: Final = (
    "e_score_correction_bias",
    "balancing_biases",
    "layer_scalar",
    "final_logits_bias",
    "rotary_emb.alpha",
)


def draw_weights(model: torch.nn.Module, seed: int) -> None:
    """Draw every parameter: matrices that keep the size of what passes through, norms near one,
    small biases.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue  # sines and cosines, stored or not
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith(
                ("A_log", "recurrent_param", "time_decay")
            ):  # states that are forgotten at once would be no test
                parameter.copy_(noise * 0.5 - 4.0)
            elif name.endswith("fgate_preact.bias"):  # its sigmoid is the decay
                parameter.copy_(noise * 0.5 + 4.0)
            elif parameter.ndim == 1 or "norm" in name:
                near_one = name.endswith(("weight", "states_scale", "residual_scale", "norm.temp"))
                parameter.copy_(noise * 0.2 + float(near_one))
            else:
                parameter.copy_(noise * (1.5 / parameter.shape[-1] ** 0.5))
        for name, buffer in model.named_buffers():
            if name.endswith("tid2eid"):  # the experts of each token id
                config: Any = model.config
                count = int(config.n_routed_experts)
                order = torch.rand(len(buffer), count, generator=generator).argsort(1)
                buffer.copy_(order[:, : buffer.shape[1]])
            # Stored, and read like parameters.
            if name.endswith(DRAWN_BUFFERS):
                buffer.copy_(
                    torch.randn(buffer.shape, generator=generator) * 0.2
                    + name.endswith("layer_scalar")
                )
            # transformers 5.23 sets the last one of ZAYA, of no expert, to -1 after loading.
            if name.endswith("balancing_biases"):
                buffer.copy_(buffer - buffer[-1] - 1.0)
