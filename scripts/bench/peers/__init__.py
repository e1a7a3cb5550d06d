"""Other ways to generate the same tokens, and ours, measured in turn."""
