"""Media of requests: where they come from, their bounds, and how they are decoded."""
