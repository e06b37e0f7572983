from core import LLM

llm = LLM(
    "tiny-qwen",
    runner="pooling",
    pooler_config={"pooling_type": "MEAN", "normalize": False},
    log_level="error",
)
print(len(llm.embed("Every token counts.", use_tqdm=False)[0].outputs.embedding))
llm.shutdown()

steps = {"pooling_type": "STEP", "step_tag_id": 9, "returned_token_ids": [17, 23], "softmax": True}
reward = LLM("tiny-qwen", convert="reward", pooler_config=steps, log_level="error")
print(tuple(reward.reward([[5, 6, 9, 7, 8, 9]], use_tqdm=False)[0].outputs.data.shape))
