"""The kinds of entries, by name; a kind has one contract and one hook."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Kind:
    """One contract that plugins implement."""

    name: str
    noun: str
    """Name of one entry in messages."""
    contract: str
    """Its protocol: module and name in `core.contracts`, or `CONTRACT` of its conformance suite."""
    use: Literal["best", "best per op", "named", "all"]
    """Which entries run; see `USES`."""
    opt_in_third_party: bool = False
    """True: third-party entries are off until the user names the plugin."""

    @property
    def hook(self) -> str:
        """The hook that returns entries of this kind."""
        return f"engine_{self.name}"


USES: Final[Mapping[str, str]] = {
    "best": "the fitting entry of highest priority, or the one requested by name",
    "best per op": "for each op, the fitting implementation of highest priority",
    "named": "the entry requested by name",
    "all": "all loaded entries",
}
"""Meaning of each value of `Kind.use`."""

_KINDS: Final = (
    Kind("clients", "client", "clients.Client", "best"),
    Kind("platforms", "platform", "platforms.Platform", "best"),
    Kind("executors", "executor", "workers.Executor", "named"),
    Kind("launchers", "launcher", "Launcher", "named"),
    Kind("workers", "worker", "workers.Worker", "best"),
    Kind("models", "model architecture", "models.Architecture", "named"),
    Kind("weight_loaders", "weight loader", "models.WeightLoader", "named"),
    Kind("quant_methods", "quantization method", "QuantMethod", "named"),
    Kind("attention_backends", "attention backend", "attention.AttentionBackend", "best"),
    Kind("op_impls", "op implementation", "OpImplementation", "best per op"),
    Kind("logits_processors", "logits processor", "sampling.LogitsProcessor", "all"),
    Kind("input_processors", "input processor", "InputProcessor", "named"),
    Kind("runners", "runner", "runners.Runner", "named"),
    Kind("poolers", "pooler", "Pooler", "named"),
    Kind("speculators", "speculator", "Speculator", "named"),
    Kind("kv_connectors", "KV connector", "KVConnector", "named"),
    Kind("kv_eviction", "order of eviction", "KVEviction", "named"),
    Kind("scheduling_policies", "scheduling policy", "scheduling.SchedulingPolicy", "named"),
    Kind("tokenizers", "tokenizer", "text.Tokenizer", "named"),
    Kind("chat_renderers", "chat renderer", "text.ChatRenderer", "best"),
    Kind("tool_parsers", "tool call parser", "ToolFormat", "named"),
    Kind("reasoning_parsers", "reasoning parser", "ReasoningFormat", "named"),
    Kind("grammar_backends", "grammar backend", "GrammarBackend", "best"),
    Kind("servers", "server", "Server", "best"),
    Kind("routes", "route group", "RouteGroup", "all", opt_in_third_party=True),
    Kind("metric_sinks", "metric sink", "telemetry.MetricSink", "all"),
    Kind("commands", "command", "serving.Command", "named"),
)
KINDS: Final = MappingProxyType({kind.name: kind for kind in _KINDS})
