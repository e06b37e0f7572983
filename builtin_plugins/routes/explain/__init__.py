"""`/explain` and `engine explain`: state of a request, and where its time went."""
