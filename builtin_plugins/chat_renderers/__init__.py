"""Ways of turning messages into a prompt."""
