"""Text: prompts to tokens, tokens to text. Knows no requests and no
engine.
"""
