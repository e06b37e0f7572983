"""`/invocations`: one path for whatever the model does."""
