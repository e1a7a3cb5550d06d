"""A second way to a report's numbers: from the store's bytes, with numpy and scipy alone."""
