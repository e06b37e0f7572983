"""A conversation, and several in one call."""

from core import LLM, SamplingParams

question = [{"role": "user", "content": "What is prefix caching?"}]
greeting = [{"role": "user", "content": "Say hello hello hello."}]
with LLM("demo:", max_model_len=1024, log_level="error") as llm:
    greedy = SamplingParams(temperature=0, max_tokens=200)
    for output in llm.chat([question, greeting], greedy, use_tqdm=False):
        print(output.outputs[0].text)
