"""The batched decode loop: its options, the order of one step, and its record."""

from lil.decoding.entry import decode, stream
from lil.decoding.options import DecodeOptions, Request

__all__ = ["DecodeOptions", "Request", "decode", "stream"]
