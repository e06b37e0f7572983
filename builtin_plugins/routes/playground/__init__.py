"""The playground: a page to chat with the model and to inspect the engine."""
