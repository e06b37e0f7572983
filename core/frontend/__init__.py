"""The frontend: `LLM`, `AsyncLLM`, and everything between a user's call and
the engine.
"""
