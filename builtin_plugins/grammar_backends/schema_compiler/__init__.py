"""JSON Schema compiled to grammars that allow exactly the valid texts."""
