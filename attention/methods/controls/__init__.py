"""Controls: methods to compare with, not to use."""
