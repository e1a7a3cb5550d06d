"""A second way to the study's numbers: texts read by another grammar, counted by other code."""
