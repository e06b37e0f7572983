"""`engine plugins`: manage plugins and write new ones."""
