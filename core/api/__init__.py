"""What every plugin imports: entries and hooks, options, configuration, errors, requests.

The other modules of this package hold the rest by subject. Names here and there are promised: they
change only with `API_VERSION`, after a warning of one minor version.
"""

from core.cli.context import CommandContext
from core.config.fields import Option
from core.config.sections import EngineConfig
from core.config.values import AllowEmpty, Range
from core.contracts.registry import Registry
from core.contracts.serving import Command
from core.errors import (
    TOO_LONG,
    ConfigError,
    EngineDead,
    EngineError,
    InvalidRequest,
    ModelError,
    PluginError,
    QueueFull,
    RequestFailed,
    RequestTimeout,
    did_you_mean,
    prompt_too_long,
)
from core.plugin.entry import API_VERSION, Entry, hookimpl, hookspec
from core.types.lora import LoRARequest
from core.types.outputs import CompletionOutput, Logprob, RequestOutput
from core.types.pooling import PoolingParams
from core.types.sampling import RequestOutputKind, SamplingParams

__all__ = [
    "API_VERSION",
    "TOO_LONG",
    "AllowEmpty",
    "Command",
    "CommandContext",
    "CompletionOutput",
    "ConfigError",
    "EngineConfig",
    "EngineDead",
    "EngineError",
    "Entry",
    "InvalidRequest",
    "LoRARequest",
    "Logprob",
    "ModelError",
    "Option",
    "PluginError",
    "PoolingParams",
    "QueueFull",
    "Range",
    "Registry",
    "RequestFailed",
    "RequestOutput",
    "RequestOutputKind",
    "RequestTimeout",
    "SamplingParams",
    "did_you_mean",
    "hookimpl",
    "hookspec",
    "prompt_too_long",
]
