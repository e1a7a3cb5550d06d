"""What `scripts/gpu_check` does on a machine nobody has prepared; the standard library alone."""
