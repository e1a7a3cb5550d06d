"""The files of a store: what they hold, how they are written and read, who writes."""
