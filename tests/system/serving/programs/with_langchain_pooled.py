"""LangChain's embeddings with an embedding model."""

import sys

from langchain_openai import OpenAIEmbeddings

TEXTS = ["the other in the then", "in on the", "he then on"]
model = OpenAIEmbeddings(
    base_url=f"{sys.argv[1]}/v1",
    api_key="none",
    model="bert",
    check_embedding_ctx_length=False,
    dimensions=16,
)
assert [len(numbers) for numbers in model.embed_documents(TEXTS)] == [16, 16, 16]
assert len(model.embed_query(TEXTS[0])) == 16
print("embeddings")
