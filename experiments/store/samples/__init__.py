"""Samples: what a trace gives under each detector."""
