"""A folder with a model, problems and a store whose every name and text is meant badly."""

from __future__ import annotations

import json

import pytest
from hostile_files import BAD, NAME, Hostile, save_word_model

from experiments.cli import main


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Hostile:
    folder = tmp_path_factory.mktemp("hostile")
    model, problems, store = f"m{NAME}", f"{NAME}.jsonl", f"s{NAME}"
    save_word_model(folder / model)
    rows = [
        {"question": f"one {BAD} + two", "answer": f"7 {BAD}", "id": "a[link=file:///x]b"},
        {"question": "</script><script>alert(1)</script>", "answer": "</pre><b>", "id": "<b>"},
    ]
    (folder / problems).write_text("\n".join(map(json.dumps, rows)))
    command = ["sweep", "--model", f"./{model}", "--dataset", f"./{problems}", "--scorer", "exact"]
    command += ["--backend", "full,h2o", "--budget", "32", "--max-new-tokens", "24"]
    command += ["--temperature", "1", "--threads", "1", "--out", store, "--no-figures"]
    command += ["--set", "detector_params.guardian.f=4", "--no-page"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(command) == 0
    return Hostile(folder, f"./{model}", f"./{problems}", store)
