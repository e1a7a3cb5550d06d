"""One file a noun of the command line: `lil NOUN`."""
