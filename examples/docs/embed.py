from core import LLM

llm = LLM("tiny-bert", log_level="error")
for output in llm.embed(["An embedding.", "And another one."], use_tqdm=False):
    print(len(output.outputs.embedding), "numbers for", len(output.prompt_token_ids), "tokens")

(tokens,) = llm.encode("One for each token.", pooling_task="token_embed", use_tqdm=False)
print(tuple(tokens.outputs.data.shape))

(pair,) = llm.score("red", "red", use_tqdm=False)
print(round(pair.outputs.score, 3))
