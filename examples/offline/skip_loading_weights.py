"""An engine with random weights: speed and memory of a model without its files' weights."""

from core import LLM, SamplingParams

with LLM("demo:", load_format="dummy", max_model_len=256, log_level="error") as llm:
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    (output,) = llm.generate("One two three", params, use_tqdm=False)
print(len(output.outputs[0].token_ids), "tokens of no meaning")
