"""Inputs nobody should type and files nobody should keep, by the thousand, in one process."""
