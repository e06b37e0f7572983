"""Text completions: several prompts in one call."""

from core import LLM, SamplingParams

prompts = ["The capital of France is", "A KV cache is", "Once upon a time"]
params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=16, seed=1)
with LLM("demo:", max_model_len=256, log_level="error") as llm:
    for output in llm.generate(prompts, params, use_tqdm=False):
        print(repr(output.prompt), "->", repr(output.outputs[0].text))
