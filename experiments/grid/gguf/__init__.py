"""Models in GGUF files: dequantised once into a folder of the user's cache, then as any other."""
