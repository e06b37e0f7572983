"""Parsers of model output: tool calls and reasoning."""
