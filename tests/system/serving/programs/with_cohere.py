"""Cohere's client with an embedding model: embeddings, rankings, async calls and errors."""

import asyncio
import base64
import struct
import sys

import cohere

URL = sys.argv[1]
TEXTS = ["the other in the then", "in on the", "he then on"]
client = cohere.ClientV2(api_key="none", base_url=URL)

found = client.embed(
    model="bert", texts=TEXTS, input_type="search_document", embedding_types=["float", "base64"]
)
assert found.texts == TEXTS
assert found.embeddings.float_ is not None
assert len(found.embeddings.float_) == 3
for text, numbers in zip(found.embeddings.base64 or (), found.embeddings.float_, strict=True):
    decoded = struct.unpack(f"<{len(numbers)}f", base64.b64decode(text))
    assert all(abs(a - b) < 1e-6 for a, b in zip(decoded, numbers, strict=True))
short = client.embed(
    model="bert",
    texts=TEXTS[:1],
    input_type="search_query",
    embedding_types=["float"],
    output_dimension=16,
)
assert len((short.embeddings.float_ or [[]])[0]) == 16
print("embeddings")

ranking = client.rerank(model="bert", query=TEXTS[0], documents=TEXTS, top_n=2)
assert ranking.results[0].index == 0
assert ranking.results[0].relevance_score >= ranking.results[1].relevance_score
assert len(ranking.results) == 2
older = cohere.Client(api_key="none", base_url=URL).rerank(
    model="bert", query=TEXTS[0], documents=TEXTS
)
assert older.results[0].index == 0
print("rankings")


async def together() -> None:
    client = cohere.AsyncClientV2(api_key="none", base_url=URL)
    pending = (client.rerank(model="bert", query=text, documents=TEXTS) for text in TEXTS)
    assert [ranked.results[0].index for ranked in await asyncio.gather(*pending)] == [0, 1, 2]


asyncio.run(together())
print("together")

for wrong, kind in (
    ({"model": "other", "query": "a", "documents": ["b"]}, cohere.errors.NotFoundError),
    ({"model": "bert", "query": "a", "documents": []}, cohere.errors.BadRequestError),
):
    try:
        client.rerank(**wrong)
    except kind:
        continue
    raise AssertionError(f"{wrong} was not refused")
print("refusals")
