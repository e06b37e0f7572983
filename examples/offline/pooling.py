"""Embeddings of texts, and their similarity, from a model that was trained to generate."""

from core import LLM

with LLM("demo:", runner="pooling", max_model_len=256, log_level="error") as llm:
    embeddings = llm.embed(["A cat.", "A dog."], use_tqdm=False)
    print(len(embeddings), "embeddings of", len(embeddings[0].outputs.embedding), "numbers")
    (pair,) = llm.score("A cat.", "A cat.", use_tqdm=False)
    print("similarity of a text to itself:", round(pair.outputs.score, 3))
    (tokens,) = llm.encode("One for each token.", pooling_task="token_embed", use_tqdm=False)
    print("one embedding for each token:", tuple(tokens.outputs.data.shape))
