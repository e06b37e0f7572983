"""Embeddings, labels, scores and rankings, as OpenAI's, Cohere's and Jina's clients ask for them."""
