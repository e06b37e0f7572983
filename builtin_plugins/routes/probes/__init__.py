"""`/health`, `/version` and `/metrics`: what operators ask."""
