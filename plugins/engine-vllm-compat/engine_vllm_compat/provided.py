"""Modules that `import vllm` provides: the names in the contracts of vLLM's plugins."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any, Final, NoReturn

from core.api import LoRARequest, PoolingParams, SamplingParams
from core.api.sampling import StructuredOutputsParams
from engine_vllm_compat import protocol, registries
from engine_vllm_compat.registries import Registries

Names = Mapping[str, Any] | Callable[[], Mapping[str, Any]]
"""Names of a module, or a function that creates them, for heavy imports."""
VERSION: Final = "0.0.0+engine"
NAME: Final = "vllm"
_MESSAGES: Final = {
    name: getattr(protocol, name)
    for name in (
        "ChatCompletionRequest",
        "ChatCompletionToolsParam",
        "DeltaFunctionCall",
        "DeltaMessage",
        "DeltaToolCall",
        "ExtractedToolCallInformation",
        "FunctionCall",
        "FunctionDefinition",
        "ResponsesRequest",
        "ToolCall",
    )
}


class Provider(MetaPathFinder, Loader):
    """Finds and creates the modules; holds what plugins register."""

    def __init__(self) -> None:
        self.registries = Registries()
        self._modules = _modules(self.registries)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: Any = None
    ) -> ModuleSpec | None:
        """Return the module specification.

        Raises `ModuleNotFoundError` for a vLLM module that is not provided.
        """
        if fullname.partition(".")[0] != NAME:
            return None
        if fullname not in self._modules:
            raise ModuleNotFoundError(
                f"{fullname} is a part of vLLM that engine-vllm-compat has not", name=fullname
            )
        return ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        """Fill a module with its names."""
        names = self._modules[module.__name__]
        module.__dict__.update(names() if callable(names) else names)


def _modules(made: Registries) -> Mapping[str, Names]:
    """Return the names by module, and the parent packages."""
    tools = {"ToolParser": registries.ToolParser, "ToolParserManager": made.tools}
    thoughts = {
        "ReasoningParser": registries.ReasoningParser,
        "ReasoningParserManager": made.reasoning,
    }
    thinking = {"BaseThinkingReasoningParser": registries.BaseThinkingReasoningParser}
    adapters = {"LoRARequest": LoRARequest}
    resolvers = {"LoRAResolver": registries.LoRAResolver, "LoRAResolverRegistry": made}
    tokenizers = {"TokenizerLike": Any, "AnyTokenizer": Any}
    sampling = {
        "SamplingParams": SamplingParams,
        "StructuredOutputsParams": StructuredOutputsParams,
    }
    package = "vllm.v1.sample.logits_processor"
    named: dict[str, Names] = {
        "vllm": {
            "__version__": VERSION,
            "SamplingParams": SamplingParams,
            "PoolingParams": PoolingParams,
            "ModelRegistry": SimpleNamespace(register_model=_no_models, get_supported_archs=tuple),
        },
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.sampling_params": sampling,
        "vllm.pooling_params": {"PoolingParams": PoolingParams},
        "vllm.lora.request": adapters,
        "vllm.lora.resolver": resolvers,
        "vllm.tool_parsers": tools,
        "vllm.tool_parsers.abstract_tool_parser": tools,
        "vllm.entrypoints.openai.tool_parsers": tools,
        "vllm.entrypoints.openai.tool_parsers.abstract_tool_parser": tools,
        "vllm.reasoning": thoughts,
        "vllm.reasoning.abs_reasoning_parsers": thoughts,
        "vllm.reasoning.basic_parsers": thinking,
        "vllm.entrypoints.openai.protocol": _MESSAGES,
        "vllm.entrypoints.openai.chat_completion.protocol": _MESSAGES,
        "vllm.entrypoints.openai.engine.protocol": _MESSAGES,
        "vllm.entrypoints.openai.responses.protocol": _MESSAGES,
        "vllm.entrypoints.chat_utils": {"make_tool_call_id": protocol.make_tool_call_id},
        "vllm.utils": {"random_uuid": protocol.random_uuid, "__getattr__": _parser},
        "vllm.utils.argparse_utils": {"__getattr__": _parser},
        "vllm.engine.arg_utils": _engine_args,
        "vllm.tokenizers": tokenizers,
        "vllm.transformers_utils.tokenizer": tokenizers,
        package: _batches,
        f"{package}.interface": _batches,
        f"{package}.builtin": _batches,
        "vllm.config": _batches,
    }
    for name in list(named):
        while "." in name:
            name = name.rpartition(".")[0]
            named.setdefault(name, {})
    return named


def _batches() -> Mapping[str, Any]:
    from engine_vllm_compat import batches  # lazy: imports torch

    names = (
        "AdapterLogitsProcessor",
        "BatchUpdate",
        "LogitsProcessor",
        "MoveDirectionality",
        "process_dict_updates",
    )
    return {name: getattr(batches, name) for name in (*names, "VllmConfig")}


def _parser(name: str) -> Any:
    """Return the parser of scripts, an attribute of its module."""
    if name != "FlexibleArgumentParser":
        raise AttributeError(f"engine-vllm-compat provides no {name!r} here")
    from builtin_plugins.commands.api import FlexibleArgumentParser  # lazy: few scripts

    return FlexibleArgumentParser


def _engine_args() -> Mapping[str, Any]:
    from core import AsyncEngineArgs, EngineArgs  # lazy: reads the options of all plugins

    return {"AsyncEngineArgs": AsyncEngineArgs, "EngineArgs": EngineArgs}


def _no_models(name: str, model: Any) -> NoReturn:
    raise NotImplementedError(
        f"the model {name} is made of vLLM's layers, which are not here; write an architecture for "
        "this engine"
    )
