from core import LLM, SamplingParams

prompt = "What is prefix caching?"
seeded = SamplingParams(temperature=1.0, seed=7, max_tokens=24)
with LLM(num_threads=1) as llm:  # the demo model
    (alone,) = llm.generate(prompt, seeded)
    *_, batched = llm.generate(
        ["Hello", "What is 347 + 285?", prompt], [SamplingParams(), SamplingParams(), seeded]
    )
print(alone.outputs[0].token_ids == batched.outputs[0].token_ids)
