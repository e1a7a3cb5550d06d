"""Files of somebody else are data: whatever they hold, nothing runs and nothing else is written."""

from __future__ import annotations

import html.parser
import json
import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hostile_files import Hostile, save_word_model

from attention.errors import InvalidValue
from experiments.cli import main
from experiments.store.files.filesystem import write_atomically
from lil.chopper import Classifier

CapFd = pytest.CaptureFixture[str]
#: Code that leaves a trace wherever it is run.
CODE = (
    "open('marker', 'w').write('ran')\nclass Config: pass\nclass Model: pass\nclass Words: pass\n"
)
RUN = ["--model", "./m", "--dataset", "q.jsonl", "--scorer", "exact", "--limit", "1"]


class Runs:
    """Unpickled, it runs."""

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, ("marker", "w")


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_word_model(tmp_path_factory.mktemp("plain") / "m", ["one", "two", "7", "."])


@pytest.fixture
def folder(tmp_path: Path, plain: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a model and problems."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(plain, tmp_path / "m")
    (tmp_path / "q.jsonl").write_text('{"question": "one", "answer": "7"}\n')
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # to every question
    return tmp_path


def _json(path: Path, **values: object) -> None:
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | values))


def _own_classes(m: Path) -> None:
    for name in ("configuration_evil", "modeling_evil", "tokenization_evil"):
        (m / f"{name}.py").write_text(CODE)
    classes = {"AutoConfig": "configuration_evil.Config"}
    classes["AutoModelForCausalLM"] = "modeling_evil.Model"
    _json(m / "config.json", auto_map=classes)
    words = {"AutoTokenizer": ["tokenization_evil.Words", "tokenization_evil.Words"]}
    _json(m / "tokenizer_config.json", auto_map=words, tokenizer_class="Words")


def _pickled_weights(m: Path) -> None:
    (m / "model.safetensors").write_bytes(pickle.dumps(Runs()))


def _pickled_bin(m: Path) -> None:
    (m / "model.safetensors").unlink()
    torch.save({"model.norm.weight": Runs()}, m / "pytorch_model.bin")


def _index_outside(m: Path) -> None:
    (m.parent / "evil.bin").write_bytes(pickle.dumps(Runs()))
    (m / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": {"model.norm.weight": "../evil.bin"}}
    (m / "pytorch_model.bin.index.json").write_text(json.dumps(index))


def _template(m: Path) -> None:
    text = "{{ lipsum.__globals__['os'].system('touch marker') }}"
    _json(m / "tokenizer_config.json", chat_template=text)
    (m / "chat_template.jinja").write_text(text)


def _custom_generate(m: Path) -> None:
    (m / "custom_generate").mkdir()
    (m / "custom_generate" / "generate.py").write_text(CODE + "def generate(**_): pass\n")
    _json(m / "generation_config.json", custom_generate="./m", trust_remote_code=True)


def _adapter(m: Path) -> None:
    _json(m / "adapter_config.json", base_model_name_or_path="../evil", peft_type="LORA")
    (m / "adapter_model.bin").write_bytes(pickle.dumps(Runs()))


MODELS = (_own_classes, _pickled_weights, _pickled_bin, _index_outside)
MODELS += (_template, _custom_generate, _adapter)


@pytest.mark.parametrize("attack", MODELS, ids=lambda attack: attack.__name__)
def test_a_model_folder(attack: Callable[[Path], None], folder: Path, capfd: CapFd) -> None:
    attack(folder / "m")
    before = sorted(os.listdir(folder))
    assert main(["run", "--max-new-tokens", "2", "--threads", "1", *RUN]) in (0, 2)
    out, err = capfd.readouterr()
    assert "Traceback" not in err
    assert "trust_remote_code" not in out  # no question to the user
    assert sorted(os.listdir(folder)) == before
    assert not (folder / "m" / "marker").exists()


@pytest.mark.parametrize("source", ["pickle.safetensors", "evil:c.safetensors", "m"])
def test_a_chopper_file(source: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    (folder / "evil").mkdir()
    (folder / "evil" / "__init__.py").write_text(CODE)
    for file in ("pickle.safetensors", "evil/c.safetensors"):
        (folder / file).write_bytes(pickle.dumps(Runs()))
    with pytest.raises(InvalidValue):
        Classifier.load(source)
    assert not Path("marker").exists()


IN_THE_WAY = {"pipe": os.mkfifo, "folder": Path.mkdir, "link": lambda x: x.symlink_to(x.name)}
COMMANDS = (
    "report {store} --no-figures --page x",
    "report {store} --no-figures --no-page --csv x",
    "calibrate {store} --detector guardian --out x",
)


@pytest.mark.parametrize("make", IN_THE_WAY.values(), ids=IN_THE_WAY)
def test_what_is_no_file_is_refused_before_any_work(
    make: Callable[[Path], None], folder: Path, hostile: Hostile, capsys: CapFd
) -> None:
    target = folder / "x"
    make(target)
    before, listed = target.lstat(), sorted(os.listdir(folder))
    store = str(hostile.folder / hostile.store)
    for command in COMMANDS:
        assert main([part.replace("{store}", store) for part in command.split()]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("lil: error")) == ("", 1)
    with pytest.raises(InvalidValue):
        write_atomically(target, "new")
    after = target.lstat()
    assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)
    assert sorted(os.listdir(folder)) == listed


def test_links_in_a_store_lead_nowhere(folder: Path, hostile: Hostile) -> None:
    shutil.copytree(hostile.folder / hostile.store, folder / "s")
    shutil.rmtree(folder / "s" / "cache", ignore_errors=True)
    (folder / "victim").write_text("mine")
    (folder / "home").mkdir()
    (folder / "s" / "cache").symlink_to("../home")
    for name in ("report.html", ".writer.lock", ".report.part.html"):
        (folder / "s" / name).unlink(missing_ok=True)
        (folder / "s" / name).symlink_to(folder / "victim")
    assert main(["report", "s", "--no-figures"]) == 0
    assert (folder / "victim").read_text() == "mine"
    assert os.listdir(folder / "home") == []


def test_nothing_runs_in_a_report(folder: Path, hostile: Hostile) -> None:
    page, store = folder / "page.html", str(hostile.folder / hostile.store)
    tables = ["--rows", "x.tex", "--rows", "x.md"]
    assert main(["report", store, "--no-figures", "--page", str(page), *tables]) == 0
    text = page.read_text(encoding="utf-8")
    tags, attributes = [], []
    browser = html.parser.HTMLParser()
    browser.handle_starttag = lambda tag, attrs: (tags.append(tag), attributes.extend(attrs))
    browser.feed(text)
    assert not {"img", "iframe", "object", "embed", "base"} & set(tags)
    assert not [name for name, _ in attributes if name.startswith("on")]
    assert not [v for _, v in attributes if (v or "").lower().startswith("javascript")]
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy"[^>]*content="([^"]*)"', text)
    assert "default-src 'none'" in policy
    assert "alert(1)" in text  # it is there, as text
    assert not re.search(r"(?<!\\)<img", Path("x.md").read_text())  # escaped it is text
