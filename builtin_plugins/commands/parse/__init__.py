"""`engine parse`: shows how model text is parsed."""
