"""What must hold of every method for all inputs; `docs/properties.md` lists it."""
