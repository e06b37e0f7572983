"""LiteLLM with an embedding model: embeddings, truncation and rankings."""

import sys

import litellm

URL = sys.argv[1]
TEXTS = ["the other in the then", "in on the", "he then on"]
found = litellm.embedding(
    model="openai/bert", input=TEXTS, api_base=f"{URL}/v1", api_key="none", encoding_format="float"
)
assert len(found.data) == 3
short = litellm.embedding(
    model="openai/bert",
    input=TEXTS[:1],
    dimensions=16,
    api_base=f"{URL}/v1",
    api_key="none",
    encoding_format="float",
    allowed_openai_params=["dimensions"],
)  # fmt: skip
assert len(short.data[0]["embedding"]) == 16
print("embeddings")
for model in ("cohere/bert", "hosted_vllm/bert", "jina_ai/bert"):
    ranked = litellm.rerank(
        model=model, query=TEXTS[0], documents=TEXTS, top_n=2, api_base=URL, api_key="none"
    )
    assert ranked.results[0]["index"] == 0, ranked
    assert len(ranked.results) == 2
    print("rankings", model)
