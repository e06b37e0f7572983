"""A page to chat with the model and to look into the engine; loads only when named."""
