"""How model families tell thoughts from answers."""
