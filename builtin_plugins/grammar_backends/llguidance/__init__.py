"""Grammars by the llguidance library, which get their meaning from `json_schema`."""
