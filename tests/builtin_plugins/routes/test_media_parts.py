"""Images in requests: three protocols give the same parts and items; errors name the part."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builtin_plugins.chat_renderers.jinja.renderer import JinjaRenderer
from builtin_plugins.routes.anthropic.routes import AnthropicRoutes
from builtin_plugins.routes.api import MediaSource, media_counters, media_loaders
from builtin_plugins.routes.cohere.routes import CohereRoutes
from builtin_plugins.routes.common.conversation import Conversation
from builtin_plugins.routes.common.output_formats import OutputFormats
from builtin_plugins.routes.common.pipeline import ChatPipeline
from builtin_plugins.routes.openai.routes import OpenAIRoutes
from builtin_plugins.routes.responses.routes import ResponsesRoutes
from builtin_plugins.routes.tokens.tokenize import TokenizeRoutes
from builtin_plugins.servers.http.server import HttpServer
from core.api import InvalidRequest
from core.testing.echo_engine import EchoEngine

GROUPS = (OpenAIRoutes, ResponsesRoutes, AnthropicRoutes, CohereRoutes, TokenizeRoutes)
TEMPLATE = """{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% \
else %}{% for part in m.content %}{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% \
endif %}{% endfor %}{% endif %}{% endfor %}"""
PATHS = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}
PIXEL = base64.b64encode(b"a picture").decode()
URL = f"data:image/png;base64,{PIXEL}"


class FakeLoader:
    """Returns the sources as items; remembers them."""

    modalities = ("image",)

    def __init__(self) -> None:
        self.sources: list[MediaSource] = []

    def check(self, sources: Sequence[MediaSource]) -> None:
        pass

    async def load(
        self, sources: Sequence[MediaSource], *, client: str, reserve: Callable[[int], None]
    ) -> Mapping[str, Any]:
        self.sources = list(sources)
        reserve(10)
        return {"image": [source.url or f"base64 {source.base64}" for source in sources]}


class SeeingEngine(EchoEngine):
    """Renders parts, and remembers the prompts that it gets."""

    def __init__(self, config: Any) -> None:
        super().__init__(config, 1_000_000)
        self.tokenizer.chat_template = TEMPLATE  # type: ignore[attr-defined]
        self.renderer = JinjaRenderer(self.tokenizer, self.source, config)  # type: ignore[assignment,arg-type]
        self.prompts: list[Any] = []
        self.given: list[dict[str, Any]] = []
        """The media of each prompt."""

    async def render_chat(self, messages: Any, **options: Any) -> tuple[str, list[int]]:
        text = self.renderer.render(messages)  # type: ignore[attr-defined]
        return text, self.tokenizer.encode(text)

    async def generate(self, prompt: Any, *given: Any, **options: Any) -> Any:
        self.given.append(dict(prompt.get("multi_modal_data", {})))
        self.prompts.append(prompt)
        expanded = [*prompt["prompt_token_ids"], 32, 32, 32]
        async for output in super().generate({"prompt_token_ids": expanded}, *given, **options):
            yield output


class Api:
    """The routes over a model with images, or without."""

    def __init__(self, make: Callable[..., Any], *, takes_images: bool = True, **options: Any):
        self.made = make(**options)
        engine = SeeingEngine(self.made.config)
        engine.registry = self.made.engine.registry
        self.loader = FakeLoader()
        if takes_images:
            media_loaders(engine.registry).append(self.loader)
        self.engine = engine
        groups = [group(engine, self.made.config) for group in GROUPS]
        self.made.server = HttpServer(engine, self.made.config, groups)

    def post(self, protocol: str, messages: list[dict[str, Any]], **fields: Any) -> Any:
        name = "input" if protocol == "responses" else "messages"
        limit = {"max_tokens": 4} if protocol != "responses" else {"max_output_tokens": 16}
        body = {name: messages, **limit, **fields}
        return self.made.call("POST", PATHS[protocol], json=body)


@pytest.fixture
def seeing(make_api: Callable[..., Any]) -> Api:
    return Api(make_api)


@pytest.fixture
def make(make_api: Callable[..., Any]) -> Callable[..., Api]:
    return lambda **options: Api(make_api, **options)


def image_part(protocol: str, url: str = URL) -> dict[str, Any]:
    """Return an image as a part of the protocol."""
    if protocol == "chat":
        return {"type": "image_url", "image_url": {"url": url}}
    if protocol == "responses":
        return {"type": "input_image", "image_url": url}
    if url.startswith("http"):
        return {"type": "image", "source": {"type": "url", "url": url}}
    data = url.partition(",")[2]
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def text_part(protocol: str, text: str) -> dict[str, Any]:
    return {"type": "input_text" if protocol == "responses" else "text", "text": text}


FIELDS = {
    "chat": "messages[{}].content[{}].image_url",
    "responses": "input[{}].content[{}].image_url",
    "messages": "messages[{}].content[{}].source",
}


@pytest.mark.parametrize("protocol", PATHS)
def test_image_becomes_a_part_and_an_item(make: Callable[..., Api], protocol: str) -> None:
    api = make()
    content = [text_part(protocol, "what"), image_part(protocol), text_part(protocol, "is it")]
    answer = api.post(protocol, [{"role": "user", "content": content}])
    assert answer.status_code == 200, answer.text
    (prompt,) = api.engine.prompts
    assert prompt["prompt"] == "[user]what<image>is it"
    (given,) = api.engine.given
    assert len(given["image"]) == 1
    assert PIXEL in given["image"][0]
    assert [source.field for source in api.loader.sources] == [FIELDS[protocol].format(0, 1)]


@pytest.mark.parametrize("protocol", PATHS)
def test_usage_counts_the_expanded_prompt(make: Callable[..., Api], protocol: str) -> None:
    api = make()
    answer = api.post(protocol, [{"role": "user", "content": [image_part(protocol)]}]).json()
    usage = answer["usage"]
    counted = usage.get("prompt_tokens", usage.get("input_tokens"))
    cached = usage.get("cache_read_input_tokens") or 0
    assert counted + cached == len(api.engine.prompts[0]["prompt_token_ids"]) + 3


PARTS = st.lists(st.one_of(st.integers(0, 3), st.sampled_from(["a", "b <image>", "ü"])), min_size=1)


@given(st.lists(PARTS, min_size=1, max_size=3))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_protocols_give_equal_placeholders_and_items(
    seeing: Api, turns: list[list[int | str]]
) -> None:
    pictures = [f"http://a.test/{part}.png" for turn in turns for part in turn if part in range(4)]
    spelled = sum(part == "b <image>" for turn in turns for part in turn)
    for protocol in PATHS:
        messages: list[dict[str, Any]] = []
        for turn in turns:
            content = [
                text_part(protocol, part)
                if isinstance(part, str)
                else image_part(protocol, f"http://a.test/{part}.png")
                for part in turn
            ]
            messages += [
                {"role": "user", "content": content},
                {"role": "assistant", "content": "yes"},
            ]
        seeing.loader.sources = []
        answer = seeing.post(protocol, [*messages, {"role": "user", "content": "end"}])
        assert answer.status_code == 200, answer.text
        prompt = seeing.engine.prompts.pop()
        assert [source.url for source in seeing.loader.sources] == pictures
        assert seeing.engine.given.pop().get("image", []) == pictures
        if pictures:
            assert prompt["prompt"].count("<image>") == len(pictures) + spelled


@pytest.mark.parametrize("protocol", PATHS)
@pytest.mark.parametrize("takes_images", [False, True])
def test_image_of_an_earlier_message_stays_if_the_model_takes_images(
    make: Callable[..., Api], protocol: str, takes_images: bool
) -> None:
    api = make(takes_images=takes_images)
    history = [
        {"role": "user", "content": [image_part(protocol), text_part(protocol, "first")]},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "second"},
    ]
    answer = api.post(protocol, history)
    assert answer.status_code == 200, answer.text
    (prompt,) = api.engine.prompts
    assert ("multi_modal_data" in prompt) == takes_images
    ignored = answer.headers.get("x-ignored-fields", "")
    assert bool(ignored) == (not takes_images)


@pytest.mark.parametrize("protocol", PATHS)
def test_model_without_images_refuses_the_part_by_name(
    make: Callable[..., Api], protocol: str
) -> None:
    api = make(takes_images=False)
    content = [text_part(protocol, "what"), image_part(protocol)]
    answer = api.post(protocol, [{"role": "user", "content": content}])
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["param"] == FIELDS[protocol].rpartition(".")[0].format(0, 1)
    assert "model 'echo' takes no images" in error["message"]
    assert api.engine.prompts == []
    assert api.post(protocol, [{"role": "user", "content": "hi"}]).status_code == 200


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"type": "image_url"}, "image_url"),
        ({"type": "image_url", "image_url": None}, "image_url"),
        ({"type": "image_url", "image_url": 5}, "image_url"),
        ({"type": "image_url", "image_url": {"url": ""}}, "image_url"),
        ({"type": "image_url", "image_url": {"url": ["a"]}}, "image_url"),
        ({"type": "image_url", "image_url": {"url": URL, "detail": "best"}}, "image_url.detail"),
        ({"type": "image_url", "image_url": {"url": URL}, "uuid": 5}, "uuid"),
        ({"type": "image_url", "image_url": {"url": URL}, "uuid": "a" * 300}, "uuid"),
        ({"type": "image"}, ""),
        ({"type": "image", "image": URL}, ""),
        ({"type": "image_embeds", "image_embeds": 7}, "image_embeds"),
        ({"type": "image_embeds", "image_embeds": None}, "image_embeds"),
        ({"type": "video_url", "video_url": {"url": "http://a.test"}}, ""),
        ({"type": "input_audio", "input_audio": {"data": "AAAA"}}, ""),
    ],
)
def test_invalid_part_is_refused_by_its_field(
    make: Callable[..., Api], part: dict[str, Any], field: str
) -> None:
    api = make()
    content = [image_part("chat"), part]
    answer = api.post("chat", [{"role": "user", "content": content}])
    expected = f"messages[0].content[1].{field}".rstrip(".")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, expected)


@pytest.mark.parametrize(
    ("source", "field"),
    [
        ({}, "source"),
        ({"type": "file", "file_id": "a"}, "source"),
        ({"type": "base64"}, "source"),
        ({"type": "base64", "data": 5}, "source"),
        ({"type": "url"}, "source.url"),
        ({"type": "url", "url": 5}, "source.url"),
    ],
)
def test_invalid_block_is_refused_by_its_field(
    make: Callable[..., Api], source: dict[str, Any], field: str
) -> None:
    content = [{"type": "image", "source": source}]
    answer = make().post("messages", [{"role": "user", "content": content}])
    expected = f"messages[0].content[0].{field}"
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, expected)


def test_image_of_coheres_chat_becomes_a_part_and_an_item(make: Callable[..., Api]) -> None:
    api = make()
    image = {"type": "image_url", "image_url": {"url": URL, "detail": "auto"}}
    content = [{"type": "text", "text": "what"}, image, {"type": "text", "text": "is it"}]
    body = {"model": "echo", "messages": [{"role": "user", "content": content}], "max_tokens": 4}
    answer = api.made.call("POST", "/v2/chat", json=body)
    assert answer.status_code == 200, answer.text
    assert api.engine.prompts[0]["prompt"] == "[user]what<image>is it"
    assert [source.field for source in api.loader.sources] == ["messages[0].content[1].image_url"]
    body["messages"] = [{"role": "assistant", "content": [image]}]
    assert api.made.call("POST", "/v2/chat", json=body).status_code == 400


def test_conversations_of_a_batch_have_their_own_images(make: Callable[..., Api]) -> None:
    api = make()
    urls = ["http://a.test/1.png", "http://a.test/2.png"]
    conversations = [[{"role": "user", "content": [image_part("chat", url)]}] for url in urls]
    body = {"messages": conversations, "max_tokens": 4}
    answer = api.made.call("POST", "/v1/chat/completions/batch", json=body)
    assert answer.status_code == 200, answer.text
    assert sorted(given["image"] for given in api.engine.given) == [[url] for url in urls]


def test_file_id_of_responses_is_refused(make: Callable[..., Api]) -> None:
    content = [{"type": "input_image", "file_id": "file-1"}]
    answer = make().post("responses", [{"role": "user", "content": content}])
    assert answer.json()["error"]["param"] == "input[0].content[0].file_id"


def test_error_of_the_loader_names_the_part(make: Callable[..., Api]) -> None:
    api = make()

    async def load(sources: Sequence[MediaSource], **options: Any) -> Mapping[str, Any]:
        raise InvalidRequest(sources[1].field, "got an SVG file; expected a PNG. Convert it.")

    api.loader.load = load  # type: ignore[method-assign]
    for protocol in PATHS:
        content = [image_part(protocol), image_part(protocol)]
        answer = api.post(protocol, [{"role": "user", "content": content}])
        expected = FIELDS[protocol].format(0, 1)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, expected)


def test_detail_without_an_effect_is_named(make: Callable[..., Api]) -> None:
    part = {"type": "image_url", "image_url": {"url": URL, "detail": "low"}}
    answer = make().post("chat", [{"role": "user", "content": [part]}])
    assert answer.headers["x-ignored-fields"] == "messages.0.content.0.image_url.detail"


def test_uuid_names_an_item_without_content(make: Callable[..., Api]) -> None:
    api = make()
    part = {"type": "image_url", "image_url": None, "uuid": "sku-1"}
    content = [{**image_part("chat"), "uuid": "sku-0"}, part]
    assert api.post("chat", [{"role": "user", "content": content}]).status_code == 200
    assert [source.uuid for source in api.loader.sources] == ["sku-0", "sku-1"]
    assert api.loader.sources[1].url is None


def test_images_of_tool_results_follow_in_the_users_message(make: Callable[..., Api]) -> None:
    anthropic = make()
    use = [{"type": "tool_use", "id": f"t{n}", "name": "shot", "input": {}} for n in range(2)]
    results = [
        {"type": "tool_result", "tool_use_id": "t0", "content": [image_part("messages")]},
        {"type": "tool_result", "tool_use_id": "t1", "content": "done"},
        {"type": "text", "text": "what is it"},
    ]
    history = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": use},
        {"role": "user", "content": results},
    ]
    assert anthropic.post("messages", history).status_code == 200
    responses = make()
    calls = [
        {"type": "function_call", "call_id": f"t{n}", "name": "shot", "arguments": "{}"}
        for n in range(2)
    ]
    outputs = [
        {"type": "function_call_output", "call_id": "t0", "output": [image_part("responses")]},
        {"type": "function_call_output", "call_id": "t1", "output": "done"},
        {"role": "user", "content": "what is it"},
    ]
    answer = responses.post("responses", [{"role": "user", "content": "look"}, *calls, *outputs])
    assert answer.status_code == 200, answer.text
    expected = "[user]look[assistant][tool][image][tool]done[user]<image>what is it"
    assert anthropic.engine.prompts[0]["prompt"] == expected
    assert responses.engine.prompts[0]["prompt"] == expected
    assert responses.loader.sources[0].field == "input[3].output[0].image_url"
    assert anthropic.loader.sources[0].field == "messages[2].content[0].content[0].source"


def test_stored_response_goes_on_with_its_images(make: Callable[..., Api]) -> None:
    api = make()
    content = [text_part("responses", "what"), image_part("responses", "http://a.test/1.png")]
    first = api.post("responses", [{"role": "user", "content": content}]).json()
    path = f"/v1/responses/{first['id']}/input_items"
    (item,) = api.made.get(path).json()["data"]
    assert item["content"][1]["image_url"] == "http://a.test/1.png"
    answer = api.post(
        "responses", [{"role": "user", "content": "and now"}], previous_response_id=first["id"]
    )
    assert answer.status_code == 200, answer.text
    assert api.engine.given[1] == {"image": ["http://a.test/1.png"]}
    assert [source.field for source in api.loader.sources] == [
        "previous_response_id.content[1].image_url"
    ]


def test_fetched_bytes_are_counted_by_the_server(make: Callable[..., Api]) -> None:
    api = make()
    counted: list[int] = []

    async def load(
        sources: Sequence[MediaSource], *, client: str, reserve: Callable[[int], None]
    ) -> Mapping[str, Any]:
        reserve(10**12)
        counted.append(1)
        return {"image": []}

    api.loader.load = load  # type: ignore[method-assign]
    for protocol in PATHS:
        answer = api.post(protocol, [{"role": "user", "content": [image_part(protocol)]}])
        assert answer.status_code in (429, 503)
    assert counted == []


def test_media_are_dropped_at_the_first_output(make: Callable[..., Api]) -> None:
    api = make()
    pipeline = ChatPipeline(api.engine, OutputFormats.shared(api.engine, {}))

    async def run() -> tuple[int, int]:
        content = [image_part("chat")]
        conversation = Conversation(messages=[{"role": "user", "content": content}])
        chat = await pipeline.prepare(conversation)
        before = len(chat.media)
        outputs = pipeline.outputs(chat, "a")
        async for _ in outputs:
            assert api.engine.prompts[0]["multi_modal_data"] == {}
        return before, len(chat.media)

    assert asyncio.run(run()) == (1, 0)


def test_beam_search_over_images_is_refused(make: Callable[..., Api]) -> None:
    messages = [{"role": "user", "content": [image_part("chat")]}]
    answer = make().post("chat", messages, use_beam_search=True, n=2, temperature=0)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "use_beam_search")


class FakeCounter:
    """Counts a prompt with images as 1,000 tokens more."""

    def __init__(self) -> None:
        self.salts: list[str] = []

    async def count(self, prompt: Mapping[str, Any], *, client: str, cache_salt: str) -> int:
        self.salts.append(cache_salt)
        images = prompt["multi_modal_data"]["image"]
        return len(prompt["prompt_token_ids"]) + 1000 * len(images)


@pytest.mark.parametrize(
    ("protocol", "path"),
    [("messages", "/v1/messages/count_tokens"), ("responses", "/v1/responses/input_tokens")],
)
def test_counting_routes_count_images(make: Callable[..., Api], protocol: str, path: str) -> None:
    api = make()
    counter = FakeCounter()
    media_counters(api.engine.registry).append(counter)
    name = "input" if protocol == "responses" else "messages"

    def count(*parts: dict[str, Any]) -> int:
        body = {name: [{"role": "user", "content": [*parts]}], "cache_salt": "s"}
        answer = api.made.call("POST", path, json=body)
        assert answer.status_code == 200, answer.text
        tokens: int = answer.json()["input_tokens"]
        return tokens

    text = text_part(protocol, "hi")
    image = image_part(protocol)
    assert count(text) < 1000
    assert counter.salts == []
    assert count(text, image, image) == count(text) + 2 * len("<image>") + 2000
    assert set(counter.salts) == {"s"}


def test_tokenize_refuses_images_by_name(make: Callable[..., Api]) -> None:
    body = {"messages": [{"role": "user", "content": [image_part("chat")]}]}
    answer = make().made.call("POST", "/tokenize", json=body)
    expected = FIELDS["chat"].format(0, 0)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, expected)


def test_text_only_prompts_are_as_before(make: Callable[..., Api]) -> None:
    for protocol in PATHS:
        api = make()
        messages = [{"role": "user", "content": [text_part(protocol, "a")]}]
        assert api.post(protocol, messages).status_code == 200
        assert list(api.engine.prompts[0]) == ["prompt_token_ids"]
