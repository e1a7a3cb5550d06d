"""What detectors do over a whole store, and which of their settings keep a promise."""
