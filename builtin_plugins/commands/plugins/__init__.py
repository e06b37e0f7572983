"""`engine plugins`: what is installed, why it was chosen, and the kit for authors."""
