"""Every architecture: a tensor too many or too few fails the load by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from core.errors import ModelError
from core.model_spec import DecoderSpec
from core.nn.decoder import Decoder
from core.testing.checkpoints import ARCHITECTURES, tiny_config
from core.testing.one_sequence import plain_context

STRAY = "model.layers.0.stray.weight"


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_no_tensor_is_left_over_or_made_up(architecture: str, spec_of: Callable[[str, Any], Any]) -> None:
    config = SimpleNamespace(**json.loads(tiny_config(architecture).to_json_string()))

    def build() -> Any:
        spec = spec_of(architecture, config)
        return Decoder(spec, plain_context()) if isinstance(spec, DecoderSpec) else spec.build(plain_context())

    shapes = dict(build().weight_shapes())
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
    missing = sorted(tensors)[len(tensors) // 2]
    with pytest.raises(ModelError, match="1 unexpected tensors") as refused:
        build().load_weights({**tensors, STRAY: torch.zeros(2, 2)}.items())
    assert STRAY in str(refused.value)
    with pytest.raises(ModelError, match="missing tensors") as refused:
        build().load_weights((name, tensor) for name, tensor in tensors.items() if name != missing)
    assert missing in str(refused.value)
