"""What the route groups share: parsing bodies, chat pipeline, sampling fields, streams, schemas."""
