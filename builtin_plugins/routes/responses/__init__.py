"""OpenAI's Responses API: stored, streamed, continued and background responses."""
