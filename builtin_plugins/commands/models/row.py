"""How one architecture is served: a row of `engine models`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

How = Literal["native", "generic", "no"]


@dataclass(frozen=True, slots=True)
class Row:
    """Support for one architecture."""

    architecture: str
    how: How
    """Served by its own entry, by the generic entry, or not."""
    model_types: tuple[str, ...] = ()
    """Config `model_type`s for which it is the causal language model in transformers."""
    plugin: str = ""
    """Name of the plugin that serves it."""
    reason: str = ""
    """Reason why it is not served."""
    images: bool | None = None
    """Whether prompts may have images; None: it is a model of text."""
    sliding_window: bool | None = None
    """Whether layers use sliding-window attention; None if untested."""
    running_state: bool | None = None
    """Whether layers keep recurrent state instead of keys and values."""
    quantization: bool | None = None
    tensor_parallel: bool | None = None
    pooling: bool | None = None
    lora_targets: tuple[str, ...] = ()
    """Names of its linear layers."""
    formats: tuple[str, ...] = ()
    """Quantization methods of the loaded plugins that it supports."""
