"""One file or folder per method; file name, registry key and `Backend.name` agree."""

from attention.contract import Backend
from attention.registry import Registry

METHODS: Registry[Backend] = Registry(
    "backend",
    ("attention.methods", "attention.methods.controls"),
    "lil.attention",
    lambda: Backend,
    example="oracle(budget=16)",
    line="source",
)
names, get, find, known = METHODS.names, METHODS.get, METHODS.find, METHODS.known
