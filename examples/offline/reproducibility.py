"""The same seed gives the same tokens, alone and among other requests."""

from core import LLM, SamplingParams

seeded = SamplingParams(temperature=1, seed=42, max_tokens=16, ignore_eos=True)
others = SamplingParams(temperature=1, max_tokens=16, ignore_eos=True)
prompt = "The weather is"
with LLM("demo:", max_model_len=256, dtype="float32", log_level="error") as llm:
    (alone,) = llm.generate(prompt, seeded, use_tqdm=False)
    among = llm.generate([prompt] * 5, [others, others, seeded, others, others], use_tqdm=False)
same = alone.outputs[0].token_ids == among[2].outputs[0].token_ids
print("same tokens:", same)
