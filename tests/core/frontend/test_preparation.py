"""Admission extensions: the names they read, preparing requests, and blame for their faults."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from core.contracts.admission import PendingRequest
from core.errors import InvalidRequest, PluginError, RequestTimeout
from core.frontend.admission import Admission, ModelLimits
from core.frontend.async_llm import AsyncLLM
from core.frontend.llm import LLM
from core.step import EngineRequest, Span
from core.testing.byte_tokenizer import ByteTokenizer
from core.types import SamplingParams
from core.types.plugin_params import KnownNames, Unsupported
from core.types.prompts import Prompt

LIMITS = ModelLimits(vocab_size=257, max_model_len=32, max_logprobs=20, eos_token_ids=(256,))
SPAN = Span(1, 3, "picture", b"x" * 16)


class Picture:
    """Reads a prompt key and replaces its token by placeholders, in a thread."""

    prompt_keys = ("picture",)

    def prepare(self, request: PendingRequest) -> PendingRequest:
        assert threading.current_thread() is not threading.main_thread()
        at = request.prompt_token_ids.index(0)
        ids = [*request.prompt_token_ids[:at], 0, 0, 0, *request.prompt_token_ids[at + 1 :]]
        features = {**request.features, "picture": request.plugin_fields["picture"]}
        return replace(
            request, prompt_token_ids=ids, spans=(*request.spans, SPAN), features=features
        )


class Adapter:
    """Reads a keyword, awaits, and adds a cache domain to the request."""

    keywords = ("adapter",)

    async def prepare(self, request: PendingRequest) -> PendingRequest:
        await asyncio.sleep(0)
        name = request.plugin_fields["adapter"]
        if name == "none":
            raise InvalidRequest("adapter", "there is none of that name.")
        domains = (*request.cache_domains, ("adapter", name.encode()))
        return replace(
            request,
            cache_domains=domains,
            extra_fields={**request.extra_fields, "lora_request": name},
        )


class Salty:
    """Changes sampling parameters at admission."""

    params = ("min_p",)

    def affects(self, sampling: SamplingParams) -> bool:
        return sampling.min_p > 0

    def admit(self, sampling: SamplingParams, end_ids: Any) -> SamplingParams:
        return sampling.clone(min_p=0.0, temperature=0.5)


def admission(*extensions: Any) -> Admission:
    blamed: Any = [(nullcontext(), each) for each in extensions]
    return Admission(LIMITS, ByteTokenizer(), [], seed=7, extensions=blamed)


def admit(
    made: Admission, prompt: Prompt, params: SamplingParams | None = None, **keywords: Any
) -> list[EngineRequest]:
    request = made.pending_request(
        "r", prompt, params or SamplingParams(), 0, made.select_known(keywords)
    )
    return made.admit(*made.preparer.prepare_all([request]))


def test_each_extension_sees_the_changes_of_earlier_ones() -> None:
    made = admission(Picture(), Adapter(), Salty())
    prompt = Prompt([1, 0, 2], plugin_fields={"picture": b"pixels"})
    both = admit(made, prompt, SamplingParams(n=2, min_p=0.1), adapter="mine")
    for request in both:
        assert request.prompt_token_ids == [1, 0, 0, 0, 2]
        assert request.spans == (SPAN,)
        assert request.features == {"picture": b"pixels"}
        assert request.cache_domains == (("adapter", b"mine"),)
        assert request.sampling.temperature == 0.5


def test_prepare_runs_only_for_requests_with_names_it_reads() -> None:
    (request,) = admit(admission(Picture(), Adapter()), Prompt([1, 0, 2]), adapter=None)
    assert request.prompt_token_ids == [1, 0, 2]
    assert (request.spans, request.cache_domains, request.features) == ((), (), {})


def test_applies_to_overrides_the_default() -> None:
    class All(Adapter):
        def applies_to(self, request: PendingRequest) -> bool:
            return True

        async def prepare(self, request: PendingRequest) -> PendingRequest:
            return replace(request, num_encoder_positions=3)

    assert admit(admission(All()), Prompt([1]))[0].num_encoder_positions == 3


def test_prepared_prompt_is_validated() -> None:
    class Long(Adapter):
        async def prepare(self, request: PendingRequest) -> PendingRequest:
            return replace(request, prompt_token_ids=[1] * 32)

    with pytest.raises(InvalidRequest, match="has 32 tokens, but the context holds 32"):
        admit(admission(Long()), Prompt([1]), adapter="a")


def test_prompt_with_spans_is_not_truncated() -> None:
    prompt = Prompt([1, 0, 2], plugin_fields={"picture": b""})
    with pytest.raises(InvalidRequest, match="truncate_prompt_tokens: cannot cut"):
        admit(admission(Picture()), prompt, SamplingParams(truncate_prompt_tokens=4))
    assert admit(admission(Picture()), prompt, SamplingParams(truncate_prompt_tokens=5))[
        0
    ].spans == (SPAN,)


def test_requests_are_prepared_concurrently() -> None:
    class Meeting(Adapter):
        here = 0

        async def prepare(self, request: PendingRequest) -> PendingRequest:
            self.here += 1
            while self.here < 3:  # would wait for ever if they came one after another
                await asyncio.sleep(0)
            return request

    made = admission(Meeting())
    requests = [
        made.pending_request(str(i), Prompt([1]), SamplingParams(), 0, {"adapter": i})
        for i in range(3)
    ]
    assert [request.request_id for request in made.preparer.prepare_all(requests)] == [
        "0",
        "1",
        "2",
    ]


def test_one_invalid_request_fails_the_call() -> None:
    made = admission(Adapter())
    requests = [
        made.pending_request("r", Prompt([1]), SamplingParams(), 0, {"adapter": name})
        for name in ("a", "none")
    ]
    with pytest.raises(InvalidRequest, match="there is none of that name"):
        made.preparer.prepare_all(requests)


def test_prepare_all_works_inside_an_event_loop() -> None:
    async def notebook() -> list[EngineRequest]:
        return admit(admission(Adapter()), Prompt([1]), adapter="a")

    assert asyncio.run(notebook())[0].cache_domains == (("adapter", b"a"),)


def test_extensions_set_only_extra_fields() -> None:
    class Liar(Adapter):
        async def prepare(self, request: PendingRequest) -> PendingRequest:
            return replace(request, extra_fields={"outputs": []})

        def finished(self, features: Mapping[str, bytes]) -> Mapping[str, Any]:
            return {"finished": False}

    made = admission(Liar())
    with pytest.raises(TypeError, match="'outputs' is no field"):
        admit(made, Prompt([1]), adapter="a")
    with pytest.raises(TypeError, match="'finished' is no field"):
        made.preparer.output_fields({"adapter": b""})


# --- names


NAMES = KnownNames(frozenset({"adapter"}), {"picture": Unsupported("needs eyes", ("auto", False))})


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"adapter": None},
        {"picture": None},
        {"picture": {}},
        {"picture": "auto"},
        {"picture": False},
        {"x": []},
    ],
)
def test_neutral_values_pass_under_any_name(given: dict[str, Any]) -> None:
    assert NAMES.select_known(given) == {}


def test_known_names_include_empty_values() -> None:
    assert NAMES.select_known({"adapter": "", "own": 1}, own=("own",)) == {"adapter": ""}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"picture": 0}, "picture: needs eyes."),
        ({"picture": {"a": 1}}, "picture: needs eyes."),
        ({"adaptor": 1}, "adaptor: no plugin reads it; did you mean 'adapter'?"),
        ({"zzz": False}, "zzz: no plugin reads it."),
    ],
)
def test_unknown_keyword_is_refused_by_name(given: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        NAMES.select_known(given, what="no plugin reads it")
    assert str(refused.value) == text


def test_name_read_by_one_extension_overrides_unsupported_of_another() -> None:
    class Known:
        unsupported: Mapping[str, Unsupported] = {"adapter": Unsupported("is missing")}

    assert KnownNames.collect([Known(), Adapter()], "keywords").select_known({"adapter": 1}) == {
        "adapter": 1
    }


# --- in whole engines


PLUGIN = """
import asyncio
from dataclasses import replace
from core.api import InvalidRequest, hookimpl

class Adapters:
    keywords = ("lora_request",)
    fields = ("kv_transfer_params",)

    def attach(self, context):
        self.size = context.max_model_len

    async def prepare(self, request):
        name = request.plugin_fields.get("lora_request")
        if name == "broken":
            raise KeyError(name)
        if name == "slow":
            await asyncio.sleep(600)
        extra_fields = {
            "lora_request": (name, self.size),
            "kv_transfer_params": request.plugin_fields.get("kv_transfer_params"),
        }
        return replace(request, extra_fields=extra_fields)

@hookimpl
def engine_admission_extensions(config, registry):
    return [Adapters()]
"""
SMALL: dict[str, Any] = {"max_model_len": 64, "num_gpu_blocks_override": 16, "log_level": "error"}


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> str:
    file: Path = tmp_path_factory.mktemp("plugin") / "adapters.py"
    file.write_text(PLUGIN)
    return f"+{file}"


@pytest.fixture(scope="module")
def plain() -> Any:
    with LLM("scripted:", **SMALL) as llm:
        yield llm


@pytest.fixture(scope="module")
def extended(plugin: str) -> Any:
    with LLM("scripted:", plugins=[plugin], **SMALL) as llm:
        yield llm


TALK = [{"role": "user", "content": "hi"}]
FEW = SamplingParams(max_tokens=2)
NEUTRAL: dict[str, Any] = {
    "lora_request": None,
    "mm_processor_kwargs": None,
    "tokenization_kwargs": {},
    "trace_headers": None,
    "data_parallel_rank": None,
}


def test_calls_accept_neutral_keywords_of_vllm(plain: LLM) -> None:
    plain.generate(
        ["a", {"prompt": "b", "multi_modal_data": {}, "mm_processor_kwargs": None}], FEW, **NEUTRAL
    )
    plain.chat(
        TALK, FEW, chat_template_content_format="auto", chat_template=None, tools=None, **NEUTRAL
    )
    plain.preprocess_chat(TALK, chat_template_content_format="auto", lora_request=None)
    plain.add_request("r", "a", FEW, **NEUTRAL)
    plain.abort("r")
    assert plain.reset_prefix_cache(reset_running_requests=False, reset_connector=False)


@pytest.mark.parametrize(
    ("call", "keywords", "text"),
    [
        ("generate", {"lora_request": object()}, "lora_request: needs LoRA adapters"),
        ("chat", {"lora_request": object()}, "lora_request: needs LoRA adapters"),
        ("chat", {"mm_processor_kwargs": {"num_crops": 4}}, "mm_processor_kwargs: needs images"),
        (
            "chat",
            {"chat_template_content_format": "parts"},
            "chat_template_content_format: got 'parts'; expected one of auto, string, openai",
        ),
        (
            "chat",
            {"chat_templat": "x"},
            "chat_templat: is no keyword of this call.*did you mean 'chat_template'",
        ),
        (
            "generate",
            {"use_tqmd": False},
            "use_tqmd: is no keyword of this call.*did you mean 'use_tqdm'",
        ),
        ("preprocess_chat", {"tool": [1]}, "tool: .*did you mean 'tools'"),
        (
            "reset_prefix_cache",
            {"reset_running_requests": True},
            "reset_running_requests: is not supported",
        ),
    ],
)
def test_calls_refuse_unsupported_keywords_by_name(
    plain: LLM, call: str, keywords: dict[str, Any], text: str
) -> None:
    given = {
        "generate": ["a"],
        "chat": [TALK],
        "preprocess_chat": [TALK],
        "reset_prefix_cache": [],
    }[call]
    with pytest.raises(InvalidRequest, match=text):
        getattr(plain, call)(*given, **keywords)


def test_keyword_is_one_value_or_one_per_prompt(extended: LLM) -> None:
    def names(outputs: Any) -> list[Any]:
        return [output.lora_request and output.lora_request[0] for output in outputs]

    assert names(extended.generate(["a", "b"], FEW, lora_request="x")) == ["x", "x"]
    assert names(extended.generate(["a", "b"], FEW, lora_request=["x", None])) == ["x", None]
    assert names(extended.chat([TALK, TALK], FEW, lora_request=["x", "y"])) == ["x", "y"]
    with pytest.raises(
        InvalidRequest, match="lora_request: holds 1 values, but there are 2 prompts"
    ):
        extended.generate(["a", "b"], FEW, lora_request=["x"])


def test_attach_receives_the_engine_context(extended: LLM) -> None:
    (output,) = extended.generate("a", FEW, lora_request="x")
    assert output.lora_request == ("x", 64)


def test_extension_fault_names_its_plugin(extended: LLM) -> None:
    with pytest.raises(
        PluginError, match=r"adapters.*failed in its admission extension.*KeyError: 'broken'"
    ):
        extended.generate("a", FEW, lora_request="broken")
    assert len(extended.generate("a", FEW)) == 1


async def last(engine: AsyncLLM, request_id: str, **keywords: Any) -> Any:
    found: Any = None
    async for output in engine.generate("a", FEW, request_id, **keywords):
        found = output
    return found


def test_slow_extension_delays_only_its_request(plugin: str) -> None:
    engine = AsyncLLM("scripted:", plugins=[plugin], disable_frontend_multiprocessing=True, **SMALL)
    one = partial(last, engine)

    async def use() -> None:
        slow = asyncio.ensure_future(one("slow", lora_request="slow"))
        assert (await one("r", lora_request="x")).lora_request == ("x", 64)
        assert not slow.done()
        slow.cancel()
        with pytest.raises(InvalidRequest, match=r"lora_reqest: .*did you mean 'lora_request'"):
            await one("s", lora_reqest="x")
        assert (await one("t", lora_request=None)).lora_request is None
        assert await engine.reset_prefix_cache(reset_running_requests=False)
        assert engine.fields.read == {"data_parallel_rank", "kv_retention", "kv_transfer_params"}
        assert (await one("u", kv_transfer_params={"a": 1})).kv_transfer_params == {"a": 1}

    try:
        asyncio.run(use())
    finally:
        engine.shutdown()


def test_request_timeout_covers_preparation(plugin: str) -> None:
    settings = {"disable_frontend_multiprocessing": True, "request_timeout": 0.1}
    engine = AsyncLLM("scripted:", plugins=[plugin], **settings, **SMALL)
    try:
        with pytest.raises(RequestTimeout, match=r"more than 0\.1 s"):
            asyncio.run(last(engine, "slow", lora_request="slow"))
    finally:
        engine.shutdown()
