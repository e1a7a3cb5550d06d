"""The reasoner that ships, for the tests of engines."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments.reasoner import checkpoint_path


@pytest.fixture(scope="session")
def reasoner() -> Any:
    path = checkpoint_path()
    return AutoModelForCausalLM.from_pretrained(path).eval(), AutoTokenizer.from_pretrained(path)
