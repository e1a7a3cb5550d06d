"""The model `lil` of lm-evaluation-harness."""
