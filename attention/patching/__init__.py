"""How a transformers model is made to attend through a cache of ours, and restored."""
