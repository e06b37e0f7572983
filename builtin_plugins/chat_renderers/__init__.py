"""Chat renderers: messages to a prompt."""
