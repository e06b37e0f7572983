"""The `scripted:` model: repeats the last message without model files, for tests and authors."""
