"""Speculative decoding with n-grams of the prompt: the same tokens in fewer steps."""

from core import LLM, SamplingParams

prompt = "one two three four five six seven eight " * 3
params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
ngram = {"method": "ngram", "num_speculative_tokens": 5, "adaptive": False}
outputs = []
for speculative in (None, ngram):
    with LLM(
        "demo:", speculative_config=speculative, max_model_len=256, dtype="float32",
        log_level="error",
    ) as llm:  # fmt: skip
        outputs += llm.generate(prompt, params, use_tqdm=False)
plain, speculated = outputs
print("same tokens:", plain.outputs[0].token_ids == speculated.outputs[0].token_ids)
print("accepted tokens:", int(speculated.counts["spec_decode_num_accepted_tokens"]))
