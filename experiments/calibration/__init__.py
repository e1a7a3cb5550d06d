"""Which setting of a detector keeps a promise about false stops."""
