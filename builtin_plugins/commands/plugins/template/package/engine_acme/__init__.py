"""KIND `acme` for the engine."""
