"""Base classes and registries of vLLM's contracts."""

from __future__ import annotations

import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any


class Parser:
    """Base class of tool and reasoning parsers."""

    def __init__(self, tokenizer: Any, *others: Any, **more: Any) -> None:
        self.model_tokenizer = tokenizer

    @cached_property
    def vocab(self) -> Any:
        """Token ids by text."""
        return self.model_tokenizer.get_vocab()


class ToolParser(Parser):
    """Parses tool calls."""

    def __init__(self, tokenizer: Any, *others: Any, **more: Any) -> None:
        super().__init__(tokenizer)
        self.prev_tool_call_arr: list[dict[str, Any]] = []
        self.current_tool_id = -1
        self.current_tool_name_sent = False
        self.streamed_args_for_tool: list[str] = []

    def adjust_request(self, request: Any) -> Any:
        """Return the request unchanged; the engine enforces forced tool calls itself."""
        return request

    def extract_tool_calls(self, model_output: str, request: Any) -> Any:
        """Return an `ExtractedToolCallInformation`."""
        raise NotImplementedError(f"{type(self).__name__} has no extract_tool_calls.")


class ReasoningParser(Parser):
    """Separates reasoning from content."""

    def extract_reasoning(self, model_output: str, request: Any) -> tuple[str | None, str | None]:
        """Return reasoning and content.

        Older plugins name the method `extract_reasoning_content`.
        """
        older: Any = getattr(self, "extract_reasoning_content", None)
        if older is None:
            raise NotImplementedError(f"{type(self).__name__} has no extract_reasoning.")
        found: tuple[str | None, str | None] = older(model_output, request)
        return found


class BaseThinkingReasoningParser(ReasoningParser):
    """Parser for reasoning between two tokens; the first may be missing."""

    start_token: Any
    end_token: Any

    def extract_reasoning(self, model_output: str, request: Any) -> tuple[str | None, str | None]:
        """Return the text before the end token, and the text after it."""
        _, start, after = model_output.partition(self.start_token)
        reasoning, _, content = (after if start else model_output).partition(self.end_token)
        return reasoning, content or None


class LoRAResolver(ABC):
    """Finds LoRA adapters by name."""

    @abstractmethod
    async def resolve_lora(self, base_model_name: str, lora_name: str) -> Any:
        """Return a `LoRARequest`, or None."""


@dataclass(slots=True)
class Classes:
    """Registered classes of one kind by name, such as `ToolParserManager`."""

    base: type[Any]
    known: dict[str, type[Any] | tuple[str, str]] = field(default_factory=dict)
    """Classes, or (module, class name) for lazy imports."""

    def register_module(
        self,
        name: str | Sequence[str] | None = None,
        force: bool = True,
        module: type[Any] | None = None,
    ) -> Callable[[type[Any]], type[Any]] | type[Any]:
        """Register a class under one or more names; without a class, return a decorator."""
        if module is None:
            return lambda found: self._registered(found, name, force)
        return self._registered(module, name, force)

    def register_lazy_module(self, name: str, module_path: str, class_name: str) -> None:
        """Register a class that is imported on first use."""
        self.known[name] = (module_path, class_name)

    def list_registered(self) -> list[str]:
        """Return the names."""
        return sorted(self.known)

    def get(self, name: str) -> type[Any]:
        """Return a class.

        Raises `KeyError` for an unknown name, `TypeError` for a class that is no parser.
        """
        found = self.known[name]
        if isinstance(found, tuple):
            found = getattr(importlib.import_module(found[0]), found[1])
        if not (isinstance(found, type) and issubclass(found, self.base)):
            raise TypeError(f"{name!r} is {found!r}, no {self.base.__name__}.")
        self.known[name] = found
        return found

    get_tool_parser = get_reasoning_parser = get

    def import_file(self, plugin_path: str) -> None:
        """Run a Python file that registers classes."""
        spec = importlib.util.spec_from_file_location(Path(plugin_path).stem, plugin_path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{plugin_path} is no Python file.")
        spec.loader.exec_module(importlib.util.module_from_spec(spec))

    import_tool_parser = import_reasoning_parser = import_file

    def _registered(
        self, found: type[Any], name: str | Sequence[str] | None, force: bool
    ) -> type[Any]:
        if not issubclass(found, self.base):
            raise TypeError(f"{found!r} is no {self.base.__name__}.")
        names = (
            [found.__name__] if name is None else [name] if isinstance(name, str) else list(name)
        )
        for each in names:
            if not force and each in self.known:
                raise KeyError(f"{each} is registered already.")
            self.known[each] = found
        return found


@dataclass(slots=True)
class Registries:
    """All registrations of one process."""

    tools: Classes = field(default_factory=lambda: Classes(ToolParser))
    reasoning: Classes = field(default_factory=lambda: Classes(ReasoningParser))
    resolvers: dict[str, LoRAResolver] = field(default_factory=dict)

    def register_resolver(self, resolver_name: str, resolver: LoRAResolver) -> None:
        """Register a resolver; replaces one of the same name."""
        self.resolvers[resolver_name] = resolver

    def get_supported_resolvers(self) -> set[str]:
        """Return the names of resolvers."""
        return set(self.resolvers)

    def get_resolver(self, resolver_name: str) -> LoRAResolver:
        """Return a resolver. Raises `KeyError`."""
        return self.resolvers[resolver_name]
