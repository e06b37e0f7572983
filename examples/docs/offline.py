from core import LLM, SamplingParams  # from vllm import LLM, SamplingParams

llm = LLM(model="Qwen/Qwen3-0.6B", dtype="float32", max_model_len=256)
params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=16, seed=1)
for output in llm.generate(
    ["The capital of France is", "Once upon a time"], params, use_tqdm=False
):
    print(repr(output.prompt), len(output.outputs[0].token_ids), output.outputs[0].finish_reason)
llm.shutdown()
