"""Others' tools: the model `lil` of lm-evaluation-harness, and logs that inspect_ai opens."""
