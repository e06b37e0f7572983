"""Where the workers run."""
