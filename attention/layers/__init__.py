"""Base classes of methods: the state of one layer, and the loops that methods fill in."""
