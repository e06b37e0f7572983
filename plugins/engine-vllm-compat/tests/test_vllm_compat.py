"""Unchanged vLLM plugins: tool parser, reasoning parser, logits processor, LoRA resolver."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[3] / "tests")]

from builtin_plugins.routes.openai.routes import OpenAIRoutes  # noqa: E402
from builtin_plugins.servers.http.server import HttpServer  # noqa: E402
from core import LLM, AsyncLLM, SamplingParams  # noqa: E402
from core.config import EngineConfig  # noqa: E402
from core.testing.plugins import load_plugins  # noqa: E402
from tests.timeouts import TIMEOUT_S  # noqa: E402 - after the path change

ROOT: Final = Path(__file__).parents[3]
PLUGIN: Final = "engine_vllm_compat.plugin"
SMALL: Final = {
    "max_model_len": 512,
    "kv_cache_memory_bytes": 1 << 24,
    "num_threads": 1,
    "log_level": "warning",
}

TOOL_PARSER: Final = """
import json
import re
from collections.abc import Sequence

from vllm.entrypoints.chat_utils import make_tool_call_id
from vllm.entrypoints.openai.protocol import (
    ChatCompletionRequest, DeltaMessage, ExtractedToolCallInformation, FunctionCall, ToolCall)
from vllm.logger import init_logger
from vllm.tool_parsers.abstract_tool_parser import ToolParser, ToolParserManager

logger = init_logger(__name__)


@ToolParserManager.register_module(["bracketed"])
class BracketedToolParser(ToolParser):
    def __init__(self, tokenizer):
        super().__init__(tokenizer)
        self.begin_id = self.vocab.get("[[")
        if self.begin_id is None:
            raise RuntimeError("no token for [[")

    def extract_tool_calls(
        self, model_output: str, request: ChatCompletionRequest
    ) -> ExtractedToolCallInformation:
        known = {tool.function.name for tool in request.tools}
        found = re.findall(r"\\[\\[(\\w+) (.*?)\\]\\]", model_output)
        calls = [
            ToolCall(
                type="function",
                id=make_tool_call_id(),
                function=FunctionCall(name=name, arguments=arguments),
            )
            for name, arguments in found
            if name in known
        ]
        content = re.sub(r"\\[\\[.*?\\]\\]", "", model_output).strip()
        return ExtractedToolCallInformation(
            tools_called=bool(calls), tool_calls=calls, content=content or None
        )

    def extract_tool_calls_streaming(
        self,
        previous_text,
        current_text,
        delta_text,
        previous_token_ids: Sequence[int],
        current_token_ids,
        delta_token_ids,
        request,
    ) -> DeltaMessage | None:
        return DeltaMessage(content=delta_text)


def register():
    logger.info("registered")
"""
REASONING_PARSER: Final = """
from vllm.reasoning import ReasoningParser, ReasoningParserManager
from vllm.reasoning.basic_parsers import BaseThinkingReasoningParser


class Between(BaseThinkingReasoningParser):
    @property
    def start_token(self):
        return "<hm>"

    @property
    def end_token(self):
        return "</hm>"


class Upper(ReasoningParser):
    def is_reasoning_end(self, input_ids):
        return True

    def extract_content_ids(self, input_ids):
        return input_ids

    def extract_reasoning(self, model_output, request):
        thoughts, _, content = model_output.rpartition("||")
        return thoughts or None, content

    def extract_reasoning_streaming(self, *given):
        return None


def register():
    ReasoningParserManager.register_module("between", module=Between)
    ReasoningParserManager.register_module("upper", module=Upper)
"""
PROCESSOR: Final = '''
import torch
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality


class OnlyToken(LogitsProcessor):
    """All tokens but one are masked, for requests that name it in `extra_args`."""

    @classmethod
    def validate_params(cls, params: SamplingParams):
        target = params.extra_args and params.extra_args.get("target_token")
        if target is not None and not isinstance(target, int):
            raise ValueError(f"target_token {target} is not int")

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool):
        self.req_info: dict[int, int] = {}
        assert vllm_config.scheduler_config.max_num_seqs > 0

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None):
        if not batch_update:
            return
        for index, params, _, _ in batch_update.added:
            if params.extra_args and (target := params.extra_args.get("target_token")) is not None:
                self.req_info[index] = target
            else:
                self.req_info.pop(index, None)
        if self.req_info:
            for index in batch_update.removed:
                self.req_info.pop(index, None)
            for a, b, direction in batch_update.moved:
                a_val, b_val = self.req_info.pop(a, None), self.req_info.pop(b, None)
                if a_val is not None:
                    self.req_info[b] = a_val
                if direction == MoveDirectionality.SWAP and b_val is not None:
                    self.req_info[a] = b_val

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if not self.req_info:
            return logits
        cols = torch.tensor(list(self.req_info.values()), dtype=torch.long, device=logits.device)
        rows = torch.tensor(list(self.req_info.keys()), dtype=torch.long, device=logits.device)
        saved = logits[rows, cols].clone()
        logits[rows] = float("-inf")
        logits[rows, cols] = saved
        return logits
'''
RESOLVER: Final = """
import os

from vllm.lora.request import LoRARequest
from vllm.lora.resolver import LoRAResolver, LoRAResolverRegistry


class FolderResolver(LoRAResolver):
    async def resolve_lora(self, base_model_name, lora_name):
        path = os.path.join(FOLDER, lora_name)
        if not os.path.exists(path):
            return None
        return LoRARequest(lora_name=lora_name, lora_int_id=abs(hash(lora_name)), lora_path=path)


def register():
    LoRAResolverRegistry.register_resolver("Folder Resolver", FolderResolver())
"""


@contextmanager
def installed(
    folder: Path, modules: Mapping[str, str], points: Mapping[str, str]
) -> Iterator[None]:
    """A distribution `vllm-things` with these modules and entry points by group."""
    info = folder / "vllm_things-2.5.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: vllm-things\nVersion: 2.5\n")
    info.joinpath("entry_points.txt").write_text(
        "".join(f"[{group}]\n{text}\n" for group, text in points.items())
    )
    for name, source in modules.items():
        folder.joinpath(f"{name}.py").write_text(source)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    forget(modules)
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        forget(modules)


def forget(modules: Mapping[str, str]) -> None:
    """Let the adapter begin anew, as in another process."""
    sys.meta_path[:] = [each for each in sys.meta_path if type(each).__name__ != "Provider"]
    for name in list(sys.modules):
        if name.partition(".")[0] in {"vllm", "engine_vllm_compat", *modules}:
            del sys.modules[name]


@contextmanager
def engine(**settings: Any) -> Iterator[AsyncLLM]:
    made = AsyncLLM(
        **{"plugins": [PLUGIN], "disable_frontend_multiprocessing": True, **SMALL, **settings}
    )
    try:
        yield made
    finally:
        made.shutdown()


def chat(made: AsyncLLM, options: Mapping[str, Any], text: str, **fields: Any) -> Any:
    app = HttpServer(
        made, made.config, [OpenAIRoutes(made, EngineConfig(options=dict(options)))]
    ).app
    body = {
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": 200,
        **fields,
    }

    async def post() -> httpx.Response:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://test", timeout=TIMEOUT_S
        ) as client:
            return await client.post("/v1/chat/completions", json=body)

    reply = asyncio.run(post())
    assert reply.status_code == 200, reply.text
    if not fields.get("stream"):
        return reply.json()["choices"][0]["message"]
    chunks = [json.loads(block.removeprefix("data: ")) for block in reply.text.split("\n\n")[:-2]]
    return [choice["delta"] for chunk in chunks for choice in chunk["choices"]]


TOOL: Final = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object"}},
}
TEXT: Final = 'Let me look. [[weather {"city": "Oslo"}]]'


def test_vllm_tool_parser(tmp_path: Path) -> None:
    general = {"vllm.general_plugins": "things = vllm_things:register"}
    with (
        installed(tmp_path, {"vllm_things": TOOL_PARSER}, general),
        engine(model="scripted:") as made,
    ):
        options = {"tool_call_parser": "bracketed", "enable_auto_tool_choice": True}
        answer = chat(made, options, TEXT, tools=[TOOL])
        (call,) = answer["tool_calls"]
        assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == (
            "weather",
            {"city": "Oslo"},
        )
        assert call["id"].startswith("chatcmpl-tool-")
        assert answer["content"] == "Let me look."
        deltas = chat(made, options, TEXT, tools=[TOOL], stream=True)
        assert "".join(delta.get("content") or "" for delta in deltas) == "Let me look."
        assert [
            c["function"]["name"]
            for d in deltas
            for c in d.get("tool_calls", ())
            if "name" in c["function"]
        ] == ["weather"]
        unknown = 'Nothing is called [[unknown {"a": 1}]] here.'
        assert chat(made, options, unknown, tools=[TOOL])["content"] == unknown
        assert chat(made, options, TEXT)["content"] == TEXT  # no tools: no calls


@pytest.mark.parametrize(
    ("parser", "text", "reasoning"),
    [("between", "<hm>Is it?</hm>Yes.", "Is it?"), ("upper", "Is it?||Yes.", "Is it?")],
)
@pytest.mark.parametrize("stream", [False, True])
def test_vllm_reasoning_parser(
    tmp_path: Path, parser: str, text: str, reasoning: str, stream: bool
) -> None:
    general = {"vllm.general_plugins": "things = vllm_things:register"}
    with (
        installed(tmp_path, {"vllm_things": REASONING_PARSER}, general),
        engine(model="scripted:") as made,
    ):
        found = chat(made, {"reasoning_parser": parser}, text, stream=stream)
        messages = found if stream else [found]
        assert "".join(each.get("reasoning_content") or "" for each in messages) == reasoning
        assert "".join(each.get("content") or "" for each in messages) == "Yes."


def test_vllm_logits_processor(tmp_path: Path) -> None:
    points = {"vllm.logits_processors": "only_token = vllm_things:OnlyToken"}
    with (
        installed(tmp_path, {"vllm_things": PROCESSOR}, points),
        LLM("scripted:", plugins=[PLUGIN], **SMALL) as llm,
    ):
        plain = [SamplingParams(temperature=0, max_tokens=4 + 3 * i) for i in range(4)]
        only = [
            SamplingParams(temperature=0, max_tokens=3 + 2 * i, extra_args={"target_token": 65 + i})
            for i in range(4)
        ]
        params = [
            each for pair in zip(plain, only, strict=True) for each in pair
        ]  # they end at different times
        texts = [f"prompt {i} and a few words" for i in range(8)]
        outputs = [output.outputs[0].text for output in llm.generate(texts, params, use_tqdm=False)]
        for i in range(4):
            assert outputs[2 * i] == texts[2 * i][: 4 + 3 * i]
            assert outputs[2 * i + 1] == chr(65 + i) * (3 + 2 * i)
        with pytest.raises(ValueError, match="target_token x is not int"):
            llm.generate("a", SamplingParams(extra_args={"target_token": "x"}), use_tqdm=False)


def test_vllm_lora_resolver(tmp_path: Path) -> None:
    adapters = ROOT / "builtin_plugins" / "model_sources" / "demo" / "adapters"
    general = {"vllm.general_plugins": "things = vllm_things:register"}
    source = RESOLVER.replace("FOLDER", repr(str(adapters)))
    demo = {
        "model": str(ROOT / "builtin_plugins" / "model_sources" / "demo" / "model"),
        "enable_lora": True,
        "max_lora_rank": 64,
    }
    with installed(tmp_path, {"vllm_things": source}, general), engine(**demo) as made:
        plain = chat(made, {}, "Where is the treasure?", max_tokens=24)
        changed = chat(made, {}, "Where is the treasure?", max_tokens=24, model="pirate")
        assert plain["content"] != changed["content"]


def test_unsupported_vllm_feature_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    modules = {
        "vllm_things": TOOL_PARSER,
        "vllm_other": "from vllm.model_executor.models import llama",
        "vllm_models": "from vllm import ModelRegistry\n\ndef register():\n    "
        "ModelRegistry.register_model('X', 'x:X')",
    }
    general = "a = vllm_other:register\nb = vllm_models:register\nthings = vllm_things:register"
    points = {
        "vllm.general_plugins": general,
        "vllm.platform_plugins": "device = vllm_other:device",
    }
    with installed(tmp_path, modules, points):
        registry = load_plugins(PLUGIN)
        assert [each.entry.name for each in registry.entries("tool_parsers")] == ["bracketed"]
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 3
    for message, why in zip(
        warnings,
        ("vllm.model_executor", "made of vLLM's layers", "vllm.platform_plugins is not served"),
        strict=True,
    ):
        assert "(vllm-things 2.5) is skipped" in message
        assert why in message
        assert "--plugins no:vllm_compat" in message


def test_parser_and_engine_args_of_scripts_are_provided(tmp_path: Path) -> None:
    source = """
from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
from vllm.utils import FlexibleArgumentParser
from vllm.utils.argparse_utils import FlexibleArgumentParser as Same

parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
assert Same is FlexibleArgumentParser
assert parser.parse_args(["--max_model_len", "7"]).max_model_len == "7"
"""
    general = {"vllm.general_plugins": "things = vllm_things:register"}
    with installed(tmp_path, {"vllm_things": source + TOOL_PARSER}, general):
        names = [each.entry.name for each in load_plugins(PLUGIN).entries("tool_parsers")]
    assert names == ["bracketed"]


def test_the_plugin_imports_nothing_heavy(tmp_path: Path) -> None:
    with installed(tmp_path, {}, {}):
        registry = load_plugins(PLUGIN)
    assert registry.entries("tool_parsers") == ()
