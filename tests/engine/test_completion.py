"""Admission extensions: what they read, how they complete requests, and who is blamed for their
faults.
"""

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

from core.contracts import Draft
from core.engine.admission import Admission, ModelLimits
from core.engine.async_llm import AsyncLLM
from core.engine.llm import LLM
from core.errors import InvalidRequest, PluginError, RequestTimeout
from core.step import EngineRequest, Span
from core.testing.byte_tokenizer import ByteTokenizer
from core.text.prompts import Prompt
from core.types import SamplingParams
from core.types.keywords import Names, Unserved

LIMITS = ModelLimits(vocab_size=257, max_model_len=32, max_logprobs=20, eos_token_ids=(256,))
SPAN = Span(1, 3, "picture", b"x" * 16)


class Picture:
    """Reads a key of prompts and puts placeholders where its token stands; takes its time in a
    thread.
    """

    prompt_keys = ("picture",)

    def prepare(self, draft: Draft) -> Draft:
        assert threading.current_thread() is not threading.main_thread()
        at = draft.prompt_token_ids.index(0)
        ids = [*draft.prompt_token_ids[:at], 0, 0, 0, *draft.prompt_token_ids[at + 1 :]]
        features = {**draft.features, "picture": draft.given["picture"]}
        return replace(draft, prompt_token_ids=ids, spans=(*draft.spans, SPAN), features=features)


class Adapter:
    """Reads a keyword, waits for something, and makes the whole request another domain of the
    cache.
    """

    keywords = ("adapter",)

    async def prepare(self, draft: Draft) -> Draft:
        await asyncio.sleep(0)
        name = draft.given["adapter"]
        if name == "none":
            raise InvalidRequest("adapter", "there is none of that name.")
        domains = (*draft.cache_domains, ("adapter", name.encode()))
        return replace(draft, cache_domains=domains, shown={**draft.shown, "lora_request": name})


class Salty:
    """An extension of the first kind: it changes sampling parameters."""

    params = ("min_p",)

    def wants(self, sampling: SamplingParams) -> bool:
        return sampling.min_p > 0

    def admit(self, sampling: SamplingParams, end_ids: Any) -> SamplingParams:
        return sampling.clone(min_p=0.0, temperature=0.5)


def admission(*extensions: Any) -> Admission:
    blamed: Any = [(nullcontext(), each) for each in extensions]
    return Admission(LIMITS, ByteTokenizer(), [], seed=7, extensions=blamed)


def admit(
    made: Admission, prompt: Prompt, params: SamplingParams | None = None, **keywords: Any
) -> list[EngineRequest]:
    draft = made.draft("r", prompt, params or SamplingParams(), 0, made.sieve(keywords))
    return made.admit(*made.completion.of_all([draft]))


def test_extensions_complete_requests_each_seeing_what_the_ones_before_it_made() -> None:
    made = admission(Picture(), Adapter(), Salty())
    prompt = Prompt([1, 0, 2], given={"picture": b"pixels"})
    both = admit(made, prompt, SamplingParams(n=2, min_p=0.1), adapter="mine")
    for request in both:
        assert request.prompt_token_ids == [1, 0, 0, 0, 2]
        assert request.spans == (SPAN,)
        assert request.features == {"picture": b"pixels"}
        assert request.cache_domains == (("adapter", b"mine"),)
        assert request.sampling.temperature == 0.5


def test_an_extension_is_asked_for_requests_that_give_it_something_alone() -> None:
    (request,) = admit(admission(Picture(), Adapter()), Prompt([1, 0, 2]), adapter=None)
    assert request.prompt_token_ids == [1, 0, 2]
    assert (request.spans, request.cache_domains, request.features) == ((), (), {})


def test_an_extension_may_say_itself_what_concerns_it() -> None:
    class All(Adapter):
        def concerns(self, draft: Draft) -> bool:
            return True

        async def prepare(self, draft: Draft) -> Draft:
            return replace(draft, beside=3)

    assert admit(admission(All()), Prompt([1]))[0].beside == 3


def test_what_comes_out_is_checked_like_everything_else() -> None:
    class Long(Adapter):
        async def prepare(self, draft: Draft) -> Draft:
            return replace(draft, prompt_token_ids=[1] * 32)

    with pytest.raises(InvalidRequest, match="has 32 tokens, but the context holds 32"):
        admit(admission(Long()), Prompt([1]), adapter="a")


def test_a_prompt_with_spans_is_not_cut() -> None:
    prompt = Prompt([1, 0, 2], given={"picture": b""})
    with pytest.raises(InvalidRequest, match="truncate_prompt_tokens: cannot cut"):
        admit(admission(Picture()), prompt, SamplingParams(truncate_prompt_tokens=4))
    assert admit(admission(Picture()), prompt, SamplingParams(truncate_prompt_tokens=5))[
        0
    ].spans == (SPAN,)


def test_many_requests_wait_for_their_extensions_together() -> None:
    class Meeting(Adapter):
        here = 0

        async def prepare(self, draft: Draft) -> Draft:
            self.here += 1
            while self.here < 3:  # would wait for ever if they came one after another
                await asyncio.sleep(0)
            return draft

    made = admission(Meeting())
    drafts = [
        made.draft(str(i), Prompt([1]), SamplingParams(), 0, {"adapter": i}) for i in range(3)
    ]
    assert [draft.request_id for draft in made.completion.of_all(drafts)] == ["0", "1", "2"]


def test_one_refusal_refuses_the_call() -> None:
    made = admission(Adapter())
    drafts = [
        made.draft("r", Prompt([1]), SamplingParams(), 0, {"adapter": name})
        for name in ("a", "none")
    ]
    with pytest.raises(InvalidRequest, match="there is none of that name"):
        made.completion.of_all(drafts)


def test_a_call_from_within_an_event_loop_is_no_trouble() -> None:
    async def notebook() -> list[EngineRequest]:
        return admit(admission(Adapter()), Prompt([1]), adapter="a")

    assert asyncio.run(notebook())[0].cache_domains == (("adapter", b"a"),)


def test_only_fields_that_are_a_features_to_fill_are_shown() -> None:
    class Liar(Adapter):
        async def prepare(self, draft: Draft) -> Draft:
            return replace(draft, shown={"outputs": []})

        def finished(self, features: Mapping[str, bytes]) -> Mapping[str, Any]:
            return {"finished": False}

    made = admission(Liar())
    with pytest.raises(TypeError, match="'outputs' is no field"):
        admit(made, Prompt([1]), adapter="a")
    with pytest.raises(TypeError, match="'finished' is no field"):
        made.completion.finished({"adapter": b""})


# --- names


NAMES = Names(frozenset({"adapter"}), {"picture": Unserved("needs eyes", ("auto", False))})


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
def test_values_that_ask_for_nothing_pass_under_any_name(given: dict[str, Any]) -> None:
    assert NAMES.sieve(given) == {}


def test_an_extension_is_given_empty_values_of_its_own_names() -> None:
    assert NAMES.sieve({"adapter": "", "own": 1}, own=("own",)) == {"adapter": ""}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"picture": 0}, "picture: needs eyes."),
        ({"picture": {"a": 1}}, "picture: needs eyes."),
        ({"adaptor": 1}, "adaptor: nobody reads it; did you mean 'adapter'?"),
        ({"zzz": False}, "zzz: nobody reads it."),
    ],
)
def test_anything_else_is_refused_by_name(given: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        NAMES.sieve(given, what="nobody reads it")
    assert str(refused.value) == text


def test_a_name_that_is_read_is_served_whatever_another_extension_says_of_it() -> None:
    class Known:
        unserved: Mapping[str, Unserved] = {"adapter": Unserved("is missing")}

    assert Names.of([Known(), Adapter()], "keywords").sieve({"adapter": 1}) == {"adapter": 1}


# --- in whole engines


PLUGIN = """
import asyncio
from dataclasses import replace
from core.api import InvalidRequest, hookimpl

class Adapters:
    keywords = ("lora_request",)
    fields = ("kv_transfer_params",)

    def attach(self, edge):
        self.size = edge.max_model_len

    async def prepare(self, draft):
        name = draft.given.get("lora_request")
        if name == "broken":
            raise KeyError(name)
        if name == "slow":
            await asyncio.sleep(600)
        return replace(draft, shown={"lora_request": (name, self.size), "kv_transfer_params": draft.given.get("kv_transfer_params")})

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


def test_calls_take_keywords_of_vllm_that_ask_for_nothing(plain: LLM) -> None:
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
            {"chat_template_content_format": "openai"},
            "chat_template_content_format: is found out",
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
            "reset_running_requests: is not served",
        ),
    ],
)
def test_calls_refuse_the_others_by_name(
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


def test_a_keyword_is_for_all_prompts_or_a_list_with_one_for_each(extended: LLM) -> None:
    def names(outputs: Any) -> list[Any]:
        return [output.lora_request and output.lora_request[0] for output in outputs]

    assert names(extended.generate(["a", "b"], FEW, lora_request="x")) == ["x", "x"]
    assert names(extended.generate(["a", "b"], FEW, lora_request=["x", None])) == ["x", None]
    assert names(extended.chat([TALK, TALK], FEW, lora_request=["x", "y"])) == ["x", "y"]
    with pytest.raises(
        InvalidRequest, match="lora_request: holds 1 values, but there are 2 prompts"
    ):
        extended.generate(["a", "b"], FEW, lora_request=["x"])


def test_an_extension_knows_the_engine_it_was_attached_to(extended: LLM) -> None:
    (output,) = extended.generate("a", FEW, lora_request="x")
    assert output.lora_request == ("x", 64)


def test_a_fault_in_an_extension_names_its_plugin(extended: LLM) -> None:
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


def test_served_requests_wait_for_their_extensions_and_for_nobody_elses(plugin: str) -> None:
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
        assert engine.fields.read == {"kv_retention", "kv_transfer_params"}
        assert (await one("u", kv_transfer_params={"a": 1})).kv_transfer_params == {"a": 1}

    try:
        asyncio.run(use())
    finally:
        engine.shutdown()


def test_an_extension_may_not_take_longer_than_a_request(plugin: str) -> None:
    settings = {"disable_frontend_multiprocessing": True, "request_timeout": 0.1}
    engine = AsyncLLM("scripted:", plugins=[plugin], **settings, **SMALL)
    try:
        with pytest.raises(RequestTimeout, match=r"more than 0\.1 s"):
            asyncio.run(last(engine, "slow", lora_request="slow"))
    finally:
        engine.shutdown()
