"""Speculative decoding: drafts tokens, counts the accepted ones, and adapts the draft length."""
