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
    """Name of its protocol: in `core.contracts`, or in `api` of the builtins of this kind."""
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

KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            Kind("clients", "client", "Client", "best"),
            Kind("platforms", "platform", "Platform", "best"),
            Kind("executors", "executor", "Executor", "named"),
            Kind("workers", "worker", "Worker", "best"),
            Kind("models", "model architecture", "Architecture", "named"),
            Kind("weight_loaders", "weight loader", "WeightLoader", "named"),
            Kind("quant_methods", "quantization method", "QuantMethod", "named"),
            Kind("attention_backends", "attention backend", "AttentionBackend", "best"),
            Kind("op_impls", "op implementation", "OpImplementation", "best per op"),
            Kind("logits_processors", "logits processor", "LogitsProcessor", "all"),
            Kind("runners", "runner", "Runner", "named"),
            Kind("poolers", "pooler", "Pooler", "named"),
            Kind("speculators", "speculator", "Speculator", "named"),
            Kind("kv_connectors", "KV connector", "KVConnector", "named"),
            Kind("kv_eviction", "order of eviction", "KVEviction", "named"),
            Kind("scheduling_policies", "scheduling policy", "SchedulingPolicy", "named"),
            Kind("tokenizers", "tokenizer", "Tokenizer", "named"),
            Kind("chat_renderers", "chat renderer", "ChatRenderer", "best"),
            Kind("tool_parsers", "tool call parser", "ToolFormat", "named"),
            Kind("reasoning_parsers", "reasoning parser", "ReasoningFormat", "named"),
            Kind("grammar_backends", "grammar backend", "GrammarBackend", "best"),
            Kind("servers", "server", "Server", "best"),
            Kind("routes", "route group", "RouteGroup", "all", opt_in_third_party=True),
            Kind("metric_sinks", "metric sink", "MetricSink", "all"),
            Kind("commands", "command", "Command", "named"),
        )
    }
)
