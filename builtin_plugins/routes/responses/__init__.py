"""OpenAI's Responses API: answers that are kept, streamed, gone on from, and made in the
background.
"""
