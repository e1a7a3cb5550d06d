"""Real processes of `lil`, ended at random moments."""
