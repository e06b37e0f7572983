"""`engine pull`: downloads models ahead of time."""
