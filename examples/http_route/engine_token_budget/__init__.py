"""route group `token_budget` for the engine."""
