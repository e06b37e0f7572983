"""`/render` routes: what they return generates the same answer."""

from __future__ import annotations

from typing import Any

import pytest

from builtin_plugins.routes.openai.routes import OpenAIRoutes
from builtin_plugins.routes.tokens.generate import TokenRoutes
from builtin_plugins.routes.tokens.render import RenderRoutes
from builtin_plugins.servers.http.app import EngineApp
from core import AsyncLLM
from tests.in_process import send_to

GROUPS = (OpenAIRoutes, TokenRoutes, RenderRoutes)


def make_engine(*arguments: Any, **options: Any) -> Any:
    return AsyncLLM(*arguments, **options)


class Served:
    def __init__(self, **options: Any) -> None:
        self.engine = make_engine(
            "scripted:",
            disable_frontend_multiprocessing=True,
            max_model_len=256,
            num_gpu_blocks_override=64,
            num_threads=1,
            **options,
        )
        config = self.engine.config
        groups = {each.__name__: each(self.engine, config) for each in GROUPS}
        self.app = EngineApp(groups, config.options)

    def post(self, path: str, body: Any) -> Any:
        return send_to(self.app, "POST", path, json=body)


@pytest.fixture(scope="module")
def served() -> Any:
    found = Served(enable_scale_out=True)
    yield found
    found.engine.shutdown()


CHAT = {
    "messages": [{"role": "user", "content": "one two three"}],
    "max_tokens": 8,
    "temperature": 0.7,
    "seed": 5,
    "cache_salt": "a",
}


def test_rendered_chat_generates_the_tokens_of_the_answer(served: Served) -> None:
    path = "/v1/chat/completions"
    answer = served.post(path, {**CHAT, "return_token_ids": True}).json()
    rendered = served.post(f"{path}/render", CHAT)
    assert rendered.status_code == 200, rendered.text
    body = rendered.json()
    assert body["token_ids"] == answer["prompt_token_ids"]
    assert (body["cache_salt"], body["stream"]) == ("a", False)
    generated = served.post("/inference/v1/generate", body).json()
    assert generated["choices"][0]["token_ids"] == answer["choices"][0]["token_ids"]


def test_stop_strings_are_rendered_and_refused_where_there_is_no_text(served: Served) -> None:
    body = served.post("/v1/chat/completions/render", {**CHAT, "stop": ["three"]}).json()
    assert body["sampling_params"]["stop"] == ["three"]
    error = served.post("/inference/v1/generate", body).json()["error"]
    assert error["param"] == "sampling_params.stop"


def test_rendered_completion_has_one_body_per_prompt(served: Served) -> None:
    body = {"prompt": ["one", [1, 2, 3]], "max_tokens": 3, "stream": True}
    rendered = served.post("/v1/completions/render", body).json()
    assert [each["token_ids"] for each in rendered][1] == [1, 2, 3]
    assert [each["sampling_params"]["max_tokens"] for each in rendered] == [3, 3]
    assert all(each["stream"] for each in rendered)
    ids = {each["request_id"] for each in rendered}
    assert len(ids) == 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"temperature": -1}, "temperature"), ({"use_beam_search": True}, "use_beam_search")],
)
def test_wrong_request_names_the_field(served: Served, fields: dict[str, Any], param: str) -> None:
    reply = served.post("/v1/chat/completions/render", {**CHAT, **fields})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_without_the_flag_there_are_no_such_routes() -> None:
    found = Served()
    try:
        assert found.post("/v1/chat/completions/render", CHAT).status_code == 404
        assert found.post("/inference/v1/generate", {"token_ids": [1]}).status_code == 404
    finally:
        found.engine.shutdown()
