"""The demo model, which is taken where the user names none."""
