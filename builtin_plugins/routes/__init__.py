"""HTTP route groups."""
