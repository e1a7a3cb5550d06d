"""One file per method; file name, registry key and `Backend.name` agree."""
