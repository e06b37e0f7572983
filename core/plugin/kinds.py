"""The kinds: what can be plugged in, by the name of the hook that gives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class Kind:
    """One contract that plugins implement."""

    name: str
    noun: str
    """What one entry is called in messages."""
    contract: str
    """Name in `core.contracts`."""
    opt_in_third_party: bool = False
    """True: a third party's entries count only when the user named the plugin."""

    @property
    def hook(self) -> str:
        """The hook that returns entries of this kind."""
        return f"engine_{self.name}"


KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            Kind("platforms", "platform", "Platform"),
            Kind("executors", "executor", "Executor"),
            Kind("models", "model architecture", "Architecture"),
            Kind("weight_loaders", "weight loader", "WeightLoader"),
            Kind("quant_methods", "quantization method", "QuantMethod"),
            Kind("attention_backends", "attention backend", "AttentionBackend"),
            Kind("op_impls", "op implementation", "OpImplementation"),
            Kind("logits_processors", "logits processor", "LogitsProcessor"),
            Kind("scheduling_policies", "scheduling policy", "SchedulingPolicy"),
            Kind("tokenizers", "tokenizer", "Tokenizer"),
            Kind("chat_renderers", "chat renderer", "ChatRenderer"),
            Kind("servers", "server", "Server"),
            Kind("routes", "route group", "RouteGroup", opt_in_third_party=True),
            Kind("metric_sinks", "metric sink", "MetricSink"),
            Kind("commands", "command", "Command"),
        )
    }
)
