"""The demo model, the default if the user names no model."""
