"""A longer context than the model was trained for, by YaRN."""

from core import LLM, SamplingParams

longer = {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}
with LLM("demo:", log_level="error") as llm:
    trained = llm.model_config.max_model_len
longer["rope_scaling"]["original_max_position_embeddings"] = trained
longer["max_position_embeddings"] = 2 * trained
with LLM("demo:", hf_overrides=longer, max_model_len=2 * trained, log_level="error") as llm:
    prompt = {"prompt_token_ids": [5 + i % 99 for i in range(trained + 50)]}
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    (output,) = llm.generate(prompt, params, use_tqdm=False)
print(len(output.prompt_token_ids) > trained, len(output.outputs[0].token_ids))
