"""Conversations in Cohere's form."""
