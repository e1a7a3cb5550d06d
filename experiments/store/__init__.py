"""What is kept, and samples read back from it."""
