"""Blocks of the prefix cache in host memory: they come back after the device has lost them."""

from core import LLM, SamplingParams

prompt = "The quick brown fox jumps over the lazy dog. " * 8
greedy = SamplingParams(temperature=0, max_tokens=4)
with LLM("demo:", kv_offloading_size=0.25, max_model_len=512, log_level="error") as llm:
    cached = 0
    while not cached:  # blocks are stored in the background
        llm.reset_prefix_cache()
        (output,) = llm.generate(prompt, greedy, use_tqdm=False)
        cached = output.num_cached_tokens or 0
print("prompt tokens from host memory:", cached)
