"""Programs of the first stages: each prints one JSON document about the machine."""

#: Python, packages, compilers and GPUs.
ENVIRONMENT = """
import importlib.metadata, json, os, platform, shutil, sys

def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None

names = ("torch", "triton", "flash-attn", "transformers", "numpy", "lazy-loader", "msgspec",
         "rich", "scipy", "pandas", "zstandard", "pytest", "pytest-xdist", "hypothesis")
found = {
    "python": sys.version.split()[0],
    "machine": platform.machine(),
    "cpus": os.cpu_count(),
    "compilers": [name for name in ("gcc", "clang", "nvcc") if shutil.which(name)],
    "packages": {name: version(name) for name in names},
    "gpus": [],
}
try:
    import torch
except ImportError as error:
    found["torch_fails"] = str(error)
else:
    found["cuda"] = torch.version.cuda or torch.version.hip
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            has = torch.cuda.get_device_properties(index)
            found["gpus"].append({
                "name": has.name,
                "capability": [has.major, has.minor],
                "bytes": has.total_memory,
                "processors": has.multi_processor_count,
            })
print(json.dumps(found))
"""

#: Why each engine refuses each dtype on each kind of device that is there; null where it works.
ENGINES = """
import json, torch
from attention.engines import ENGINES
from attention.engines import select

devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
dtypes = ("float32", "float16", "bfloat16")
print(json.dumps({
    device: {
        dtype: {
            "auto": select("auto", torch.device(device), getattr(torch, dtype)).name,
            **{
                name: engine.refusal(torch.device(device), getattr(torch, dtype))
                for name, engine in ENGINES.items()
            },
        }
        for dtype in dtypes
    }
    for device in devices
}))
"""
