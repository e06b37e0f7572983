"""New weights in a running engine, as a trainer sends them; the prefix cache is cleared."""

from core import LLM, SamplingParams

greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
name = "model.norm.weight"
with LLM("demo:", max_model_len=256, dtype="float32", log_level="error") as llm:
    (before,) = llm.generate("One two three", greedy, use_tqdm=False)
    (weight,) = llm.apply_model(lambda model: model.norm.weight.clone())
    llm.apply_model(lambda model: model.update_weights([(name, -weight)]))
    (changed,) = llm.generate("One two three", greedy, use_tqdm=False)
    llm.apply_model(lambda model: model.update_weights([(name, weight)]))
    (restored,) = llm.generate("One two three", greedy, use_tqdm=False)
print("changed:", changed.outputs[0].token_ids != before.outputs[0].token_ids)
print("restored:", restored.outputs[0].token_ids == before.outputs[0].token_ids)
