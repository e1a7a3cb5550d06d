"""A GGUF file with its matrices in blocks of 8 bits (Q8_0), from one in any other storage."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize, quantize


def in_eight_bits(source: Path, target: Path) -> Path:
    """Write `target` where it is not there yet; it.

    Args:
        source: a GGUF file.
        target: where to; whole or not at all.
    """
    if target.exists():
        return target
    reader = GGUFReader(source)
    architecture = reader.get_field("general.architecture")
    if architecture is None:
        raise ValueError(f"{source} does not say its architecture")
    partial = target.with_suffix(".partial")
    writer = GGUFWriter(partial, architecture.contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind, of = field.types[0], field.types[-1]
        part = of if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=part)
    eight = GGMLQuantizationType.Q8_0
    for tensor in reader.tensors:
        # Rows that the reader has are of bytes; its shape counts from the innermost.
        values = dequantize(np.asarray(tensor.data), tensor.tensor_type)
        if values.ndim == 2 and values.shape[-1] % 32 == 0:
            writer.add_tensor(tensor.name, quantize(values, eight), raw_dtype=eight)
        else:
            writer.add_tensor(tensor.name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(partial, target)
    return target
