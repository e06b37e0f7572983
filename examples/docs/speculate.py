from core import LLM, SamplingParams

prompt = "one two three four five six seven eight " * 3
params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
ngram = {"method": "ngram", "num_speculative_tokens": 5, "adaptive": False}
outputs = []
for speculative in (None, ngram):
    with LLM(
        speculative_config=speculative, max_model_len=256, dtype="float32", log_level="error"
    ) as llm:
        outputs += llm.generate(prompt, params, use_tqdm=False)
plain, speculated = outputs
print("same text:", plain.outputs[0].text == speculated.outputs[0].text)
print("accepted tokens:", speculated.counts["spec_decode_num_accepted_tokens"] > 10)
