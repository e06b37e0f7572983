"""A tool call: the model names a function and its arguments, this script calls it."""

import json
import re

from core import LLM, SamplingParams


def get_weather(city: str) -> str:
    return f"It is sunny in {city}."


tool = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
messages = [{"role": "user", "content": "What is the weather in Paris?"}]
with LLM("demo:", max_model_len=2048, log_level="error") as llm:
    greedy = SamplingParams(temperature=0, max_tokens=200)
    (output,) = llm.chat(messages, greedy, tools=[tool], use_tqdm=False)
text = output.outputs[0].text
print(text)
found = re.search(r"<tool_call>\s*(\{.*\})\s*</tool_call>", text, re.DOTALL)
if found:
    call = json.loads(found[1])
    print(get_weather(**call["arguments"]))
