"""Samples: what a trace gives under each detector, made once and kept."""
