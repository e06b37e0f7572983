"""The OpenAI API: models, completions, chat completions."""
