"""LangChain's OpenAI package: chat, tools, response formats, responses and batches."""

import asyncio
import sys
from typing import Any

from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

URL = sys.argv[1]
CALL = sys.argv[2]
COMMON: dict[str, Any] = {
    "base_url": f"{URL}/v1",
    "api_key": "none",
    "model": "demo",
    "max_retries": 0,
}


@tool
def weather(city: str) -> str:
    """The weather."""
    return f"sunny in {city}"


class City(BaseModel):
    """A city."""

    city: str


for options in ({}, {"use_responses_api": True}):
    model = ChatOpenAI(**COMMON, **options)
    messages = [SystemMessage("Be kind."), HumanMessage("hello")]
    whole = model.invoke(messages)
    assert whole.text == "hello", whole
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] > 0
    assert "".join(chunk.text for chunk in model.stream(messages)) == "hello"
    print("chat", options)

    bound = model.bind_tools([weather])
    called = bound.invoke([HumanMessage(CALL)])
    (call,) = called.tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Rome"})
    result = weather.invoke(call)
    assert isinstance(result, ToolMessage)
    again = bound.invoke([HumanMessage(CALL), called, result, HumanMessage("It is sunny.")])
    assert again.text == "It is sunny.", again
    gathered: Any = None
    for chunk in bound.stream([HumanMessage(CALL)]):
        gathered = chunk if gathered is None else gathered + chunk
    assert gathered.tool_calls[0]["args"] == {"city": "Rome"}
    print("tools", options)

    city_info = model.with_structured_output(City, method="json_schema").invoke('{"city": "Rome"}')
    assert city_info == City(city="Rome"), city_info
    print("form", options)

assert OpenAI(**COMMON, max_tokens=20).invoke("hello") == "hello"
print("completions")


async def together() -> None:
    model = ChatOpenAI(**COMMON)
    answers = await model.abatch([f"number {i}" for i in range(8)])
    assert [answer.text for answer in answers] == [f"number {i}" for i in range(8)]


asyncio.run(together())
print("together")
