"""Blocks of the prefix cache in host memory: they come back after the device has lost them."""

import time

from core import LLM, SamplingParams

prompt = "The quick brown fox jumps over the lazy dog. " * 8
greedy = SamplingParams(temperature=0, max_tokens=4)
with LLM("demo:", kv_offloading_size=0.25, max_model_len=512, log_level="error") as llm:
    llm.generate(prompt, greedy, use_tqdm=False)
    while not llm.reset_prefix_cache():  # blocks are in use until they are stored
        llm.step()
        time.sleep(0.01)
    (output,) = llm.generate(prompt, greedy, use_tqdm=False)
print("prompt tokens from host memory:", output.num_cached_tokens)
