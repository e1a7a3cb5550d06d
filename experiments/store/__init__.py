"""Stored traces, and samples read from them."""
