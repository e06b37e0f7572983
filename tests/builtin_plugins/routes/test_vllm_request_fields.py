"""Every field of the protocols' current schemas is known: served, ignored or rejected."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_create_params as beta_message_create_params
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import input_token_count_params, response_create_params

BODIES: list[tuple[str, type[Any]]] = [
    ("CompletionFields", completion_create_params.CompletionCreateParamsStreaming),
    ("ChatFields", chat_create_params.CompletionCreateParamsStreaming),
    ("ResponsesFields", response_create_params.ResponseCreateParamsStreaming),
    ("MessagesFields", message_create_params.MessageCreateParamsStreaming),
    ("MessagesFields", beta_message_create_params.MessageCreateParamsStreaming),
    ("CountFields", message_count_tokens_params.MessageCountTokensParams),
    ("InputFields", input_token_count_params.InputTokenCountParams),
]


@pytest.fixture
def schemas(api: Any) -> dict[str, Any]:
    return dict(api.get("/openapi.json").json()["components"]["schemas"])


@pytest.mark.parametrize(("name", "params"), BODIES)
def test_every_vllm_field_is_known(schemas: dict[str, Any], name: str, params: Any) -> None:
    fields = params.__required_keys__ | params.__optional_keys__
    assert fields - schemas[name]["properties"].keys() == set()
