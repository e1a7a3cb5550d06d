"""How much is new: meters, curves, codecs and the matcher they share."""
