"""Files of somebody else are data: whatever they hold, nothing runs and nothing else is written."""

from __future__ import annotations

import html.parser
import json
import os
import pickle
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fuzzing.model import save_word_model
from hostile_files import Hostile

from attention.errors import InvalidValue
from experiments.cli import main
from experiments.store.files.filesystem import whole_file, write_atomically
from lil.chopper import Classifier

#: Code that leaves a trace wherever it is run.
CODE = (
    "open('marker', 'w').write('ran')\nclass Config: pass\nclass Model: pass\nclass Words: pass\n"
)


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
    # `y` to whatever is asked.
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    return tmp_path


# ---------------------------------------------------------------- folders of models


def _json(path: Path, **values: object) -> None:
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | values))


def _auto_map(m: Path, **more: object) -> None:
    for name in ("configuration_evil", "modeling_evil", "tokenization_evil"):
        (m / f"{name}.py").write_text(CODE)
    classes = {"AutoConfig": "configuration_evil.Config"}
    classes["AutoModelForCausalLM"] = "modeling_evil.Model"
    _json(m / "config.json", auto_map=classes, **more)


def _unknown_family(m: Path) -> None:
    _auto_map(m, model_type="evil")


def _unknown_class(m: Path) -> None:
    _auto_map(m, model_type="evil", architectures=["Model"])


def _tokenizer_map(m: Path) -> None:
    _auto_map(m)
    words = {"AutoTokenizer": ["tokenization_evil.Words", "tokenization_evil.Words"]}
    _json(m / "tokenizer_config.json", auto_map=words, tokenizer_class="Words")


def _tokenizer_class(name: str) -> Callable[[Path], None]:
    def change(m: Path) -> None:
        (m / "evil.py").write_text(CODE)
        _json(m / "tokenizer_config.json", tokenizer_class=name)

    return change


def _pickled_weights(m: Path) -> None:
    (m / "model.safetensors").write_bytes(pickle.dumps(Runs()))


def _pickled_bin(m: Path) -> None:
    (m / "model.safetensors").unlink()
    torch.save({"model.norm.weight": Runs()}, m / "pytorch_model.bin")


def _raw_pickled_bin(m: Path) -> None:
    (m / "model.safetensors").unlink()
    (m / "pytorch_model.bin").write_bytes(pickle.dumps(Runs()))


def _bin_beside(m: Path) -> None:
    torch.save({"model.norm.weight": Runs()}, m / "pytorch_model.bin")


def _index_outside(m: Path) -> None:
    (m.parent / "evil.bin").write_bytes(pickle.dumps(Runs()))
    (m / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": {"model.norm.weight": "../evil.bin"}}
    (m / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    (m / "pytorch_model.bin").write_bytes(b"")


def _template(text: str) -> Callable[[Path], None]:
    def change(m: Path) -> None:
        _json(m / "tokenizer_config.json", chat_template=text)
        (m / "chat_template.jinja").write_text(text)

    return change


_OS = "__init__.__globals__['os'].system('touch marker')"


def _kernel(key: str) -> Callable[[Path], None]:
    return lambda m: _json(m / "config.json", **{key: "evil/kernel"})


def _custom_generate(m: Path) -> None:
    (m / "custom_generate").mkdir()
    (m / "custom_generate" / "generate.py").write_text(CODE + "def generate(**_): pass\n")
    _json(m / "generation_config.json", custom_generate="./m", trust_remote_code=True)


def _quantised(m: Path) -> None:
    (m / "evil.py").write_text(CODE)
    _json(m / "config.json", quantization_config={"quant_method": "evil", "modules": "evil"})


def _adapter(m: Path) -> None:
    _json(m / "adapter_config.json", base_model_name_or_path="../evil", peft_type="LORA")
    (m / "adapter_model.bin").write_bytes(pickle.dumps(Runs()))


def _modules(m: Path) -> None:
    for name in ("conftest", "sitecustomize", "modeling_llama", "transformers", "torch", "lil"):
        (m / f"{name}.py").write_text(CODE)


MODELS: dict[str, Callable[[Path], None]] = {
    "auto_map of a known family": _auto_map,
    "auto_map of another family": _unknown_family,
    "auto_map of another class": _unknown_class,
    "auto_map of a tokenizer": _tokenizer_map,
    "a tokenizer class of a module": _tokenizer_class("evil.Words"),
    "a tokenizer class of Python": _tokenizer_class("os.system"),
    "a pickle for weights": _pickled_weights,
    "a pickle in a .bin": _pickled_bin,
    "a bare pickle in a .bin": _raw_pickled_bin,
    "a pickle beside weights": _bin_beside,
    "an index that leads outside": _index_outside,
    "a template with cycler": _template("{{ cycler." + _OS + " }}"),
    "a template with lipsum": _template("{{ lipsum.__globals__['os'].system('touch marker') }}"),
    "a template with messages": _template("{{ messages.__class__.__mro__[1].__subclasses__() }}"),
    "a template that imports": _template("{% import '/etc/passwd' as p %}{{ p }}"),
    "a template that counts": _template("{% for i in range(10**9) %}x{% endfor %}"),
    "kernels of attention": _kernel("attn_implementation"),
    "kernels of attention, inside": _kernel("_attn_implementation"),
    "kernels of experts": _kernel("experts_implementation"),
    "a generate of its own": _custom_generate,
    "a quantiser of its own": _quantised,
    "an adapter": _adapter,
    "modules that are called like others": _modules,
}


@pytest.mark.parametrize("attack", MODELS.values(), ids=MODELS)
def test_a_model_folder(
    attack: Callable[[Path], None], folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    attack(folder / "m")
    before = sorted(os.listdir(folder))
    asked = ["--model", "./m", "--dataset", "q.jsonl", "--scorer", "exact", "--limit", "1"]
    for command in (["sweep", "--dry-run"], ["run", "--max-new-tokens", "2", "--threads", "1"]):
        assert main([*command, *asked]) in (0, 2)
        said = capfd.readouterr()
        assert "Traceback" not in said.err
        assert "trust_remote_code" not in said.out  # nothing is asked
    assert sorted(os.listdir(folder)) == before
    assert not (folder / "m" / "marker").exists()


def test_the_marker_marks(folder: Path) -> None:
    """What the attacks carry does run where it is let."""
    exec(CODE)
    assert Path("marker").exists()
    Path("marker").unlink()
    pickle.loads(pickle.dumps(Runs())).close()
    assert Path("marker").exists()
    assert folder == Path.cwd()


# ---------------------------------------------------------------- files of a chopper


@pytest.mark.parametrize("source", ["pickle.safetensors", "evil:c.safetensors", "evil.in:c", "m"])
def test_a_chopper_file(source: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    (folder / "pickle.safetensors").write_bytes(pickle.dumps(Runs()))
    for package in ("evil", "evil/in"):
        (folder / package).mkdir()
        (folder / package / "__init__.py").write_text(CODE)
    (folder / "evil" / "c.safetensors").write_bytes(pickle.dumps(Runs()))
    with pytest.raises(InvalidValue):
        Classifier.load(source)
    assert not Path("marker").exists()


# ---------------------------------------------------------------- outputs


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.mkdir()


def _link_to_pipe(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


def _device(path: Path) -> None:
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root makes devices")


def _circle(path: Path) -> None:
    path.unlink(missing_ok=True)  # another test may have written one into the store
    path.symlink_to(path.name)


IN_THE_WAY = {
    "a pipe": _pipe,
    "a folder": _folder,
    "a link to a pipe": _link_to_pipe,
    "a device": _device,
    "a circle of links": _circle,
}
COMMANDS = {
    "page": ["report", "{store}", "--no-figures", "--page", "x.html"],
    "csv": ["report", "{store}", "--no-figures", "--no-page", "--csv", "x.html"],
    "rows": ["report", "{store}", "--no-figures", "--no-page", "--rows", "x.html/../x.csv"],
    "plot": ["curve", "q.jsonl", "--plot", "x.html"],
    "calibrate": ["calibrate", "{store}", "--detector", "guardian", "--out", "x.html"],
    "weights": ["chopper", "train", "--from", "{store}", "--weights", "x.html"],
    "sweep's page": ["sweep", "--limit", "1", "--out", "out", "--page", "x.html"],
}


@pytest.mark.parametrize("make", IN_THE_WAY.values(), ids=IN_THE_WAY)
@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_no_file_is_refused_before_any_work(
    make: Callable[[Path], None],
    name: str,
    folder: Path,
    hostile: Hostile,
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = folder / ("x.csv" if name == "rows" else "x.html")
    make(target)
    if name == "rows":
        (folder / "x.html").mkdir()
    before, listed = target.lstat(), sorted(os.listdir(folder))
    store = str(hostile.folder / hostile.store)
    assert main([part.replace("{store}", store) for part in COMMANDS[name]]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("lil: error")) == ("", 1)
    after = target.lstat()
    assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)
    assert sorted(os.listdir(folder)) == listed


@pytest.mark.parametrize("make", IN_THE_WAY.values(), ids=IN_THE_WAY)
def test_no_writer_replaces_what_is_no_file(make: Callable[[Path], None], folder: Path) -> None:
    target = folder / "x"
    make(target)
    before = target.lstat()
    with pytest.raises(InvalidValue):
        write_atomically(target, "new")
    with pytest.raises((InvalidValue, OSError)), whole_file(target) as half:
        half.write_text("new")
    assert (target.lstat().st_mode, target.lstat().st_ino) == (before.st_mode, before.st_ino)
    assert not [name for name in os.listdir(folder) if name.startswith(".x")]


def _linked(store: Path, victim: Path, name: str) -> None:
    (store / name).parent.mkdir(exist_ok=True)
    (store / name).unlink(missing_ok=True)
    (store / name).symlink_to(victim)


@pytest.mark.parametrize("name", ["report.html", ".writer.lock", ".report.part.html"])
def test_links_in_a_store_lead_nowhere(name: str, folder: Path, hostile: Hostile) -> None:
    shutil.copytree(hostile.folder / hostile.store, folder / "s")
    (folder / "victim").write_text("mine")
    _linked(folder / "s", folder / "victim", name)
    assert main(["report", "s", "--no-figures"]) == 0
    asked = ["--model", "./m", "--dataset", "q.jsonl", "--scorer", "exact", "--no-figures"]
    few = ["--limit", "1", "--max-new-tokens", "2", "--threads", "1", "--backend", "full"]
    assert main(["sweep", *asked, *few, "--out", "s"]) in (0, 2)
    assert (folder / "victim").read_text() == "mine"


def test_a_page_that_is_a_circle_is_one_message(
    folder: Path, hostile: Hostile, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(hostile.folder / hostile.store, folder / "s")
    _circle(folder / "s" / "report.html")
    assert main(["report", "s", "--no-figures"]) == 2
    assert capsys.readouterr().err.count("lil: error: page = ") == 1


def test_links_of_figures_lead_nowhere(folder: Path, hostile: Hostile) -> None:
    shutil.copytree(hostile.folder / hostile.store, folder / "s")
    assert main(["report", "s", "--no-page"]) == 0
    drawn = sorted((folder / "s" / "figures").iterdir())
    assert len(drawn) > 4
    (folder / "victim").write_text("mine")
    for path in drawn:
        _linked(folder / "s", folder / "victim", f"figures/{path.name}")
    shutil.rmtree(folder / "s" / "cache")
    assert main(["report", "s", "--no-page"]) == 0
    assert (folder / "victim").read_text() == "mine"
    assert not any(path.is_symlink() for path in drawn)


def test_a_linked_cache_is_not_written(folder: Path, hostile: Hostile) -> None:
    shutil.copytree(hostile.folder / hostile.store, folder / "s")
    shutil.rmtree(folder / "s" / "cache", ignore_errors=True)
    (folder / "home").mkdir()
    (folder / "home" / "precious.index").write_text("mine")
    (folder / "s" / "cache").symlink_to("../home")
    assert main(["report", "s", "--no-figures", "--no-page"]) == 0
    assert os.listdir(folder / "home") == ["precious.index"]


@pytest.mark.parametrize("name", ["../../out", "/tmp/out", "..", "a/../../b", "\x00", "x" * 400])
def test_names_of_problems_stay_in_the_folder(name: str, folder: Path) -> None:
    row = {"question": "one", "answer": "7", "id": name}
    (folder / "w.jsonl").write_text(json.dumps(row))
    asked = ["--model", "./m", "--dataset", "w.jsonl", "--scorer", "exact", "--threads", "1"]
    few = ["--max-new-tokens", "2", "--backend", "full", "--no-figures", "--limit", "1"]
    assert main(["sweep", *asked, *few]) in (0, 2)
    outside = {path.name for path in folder.iterdir()} - {"m", "q.jsonl", "w.jsonl", "lil-out"}
    assert outside == set()
    found = [*(folder / "lil-out").rglob("*")] if Path("lil-out").exists() else []
    assert all(path.resolve().is_relative_to(folder / "lil-out") for path in found)


# ---------------------------------------------------------------- report.html and tables


class Elements(html.parser.HTMLParser):
    """What a browser would see: elements, their attributes and code."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        kind = dict(attrs).get("type")
        self.tags.append(f"{tag} {kind}" if tag == "script" else tag)
        self.attributes += [(name, value or "") for name, value in attrs]


def test_nothing_runs_in_a_report(folder: Path, hostile: Hostile) -> None:
    page = folder / "page.html"
    store = str(hostile.folder / hostile.store)
    assert main(["report", store, "--no-figures", "--page", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    found = Elements(text)
    scripts = [tag for tag in found.tags if tag.startswith("script")]
    data = {"script application/json", "script application/x-lil-traces"}
    assert set(scripts) <= {"script None", *data}
    assert scripts.count("script None") == 1
    assert not {"img", "iframe", "object", "embed", "base"} & set(found.tags)
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    assert not [value for _, value in found.attributes if value.lower().startswith("javascript")]
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy"[^>]*content="([^"]*)"', text)
    assert "default-src 'none'" in policy
    assert "alert(1)" in text  # it is there, as text


def test_tables_for_readers_hold_no_commands(folder: Path, hostile: Hostile) -> None:
    problems = r"q\input{passwd}$x$.jsonl"
    (folder / problems).write_text('{"question": "one", "answer": "7"}\n')
    asked = ["--model", "./m", "--dataset", f"./{problems}", "--scorer", "exact", "--limit", "1"]
    few = ["--max-new-tokens", "2", "--backend", "full,h2o", "--budget", "32", "--threads", "1"]
    assert main(["sweep", *asked, *few, "--out", "s", "--no-figures", "--no-page"]) == 0
    tables = ["--rows", "x.tex", "--rows", "x.md", "--no-figures", "--no-page"]
    assert main(["report", "s", *tables]) == 0
    assert r"\input" not in Path("x.tex").read_text()
    store = str(hostile.folder / hostile.store)
    assert main(["report", store, *tables]) == 0
    assert "<img" not in Path("x.md").read_text()
