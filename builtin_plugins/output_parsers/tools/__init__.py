"""How model families write tool calls."""
