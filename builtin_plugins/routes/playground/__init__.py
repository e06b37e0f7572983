"""A page to chat with the model and to inspect the engine; loads only when named."""
