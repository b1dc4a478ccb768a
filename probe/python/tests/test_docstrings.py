"""The public API says what it takes, gives and raises, and the examples in its docstrings are true."""

import doctest
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import collector  # noqa: F401
import pytest
from torch.utils.data import DataLoader

import stallscope

MODULES = [
    "stallscope.steps",
    "stallscope.checkpoint.checkpointer",
    "stallscope.checkpoint.errors",
    "stallscope.data.loader",
    "stallscope.data.resume.position",
]
PACKED = ["name", "label", "index", "in_chunk_order", "shuffled"]
LOADER = ["cache_figures", "invalidate", "weighted", "update", "state_dict", "load_state_dict"]
CHECKPOINTER = ["restore", "step", "save", "close"]
PUBLIC = [
    *(getattr(stallscope, name) for name in stallscope.__all__),
    *(getattr(stallscope.DataLoader, name) for name in LOADER),
    *(getattr(stallscope.PackedDataset, name) for name in PACKED),
    *(getattr(stallscope.Checkpointer, name) for name in CHECKPOINTER),
]
# The class's own example shows these.
WITHOUT_EXAMPLE = [stallscope.Checkpointer.step, stallscope.Checkpointer.close]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_are_true(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The pool of the examples goes with the last of their loaders.
    monkeypatch.setenv("STALLSCOPE_RUNTIME_DIR", str(tmp_path / "run"))
    failed, tried = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert tried and not failed


@pytest.mark.parametrize("item", PUBLIC, ids=lambda item: item.__qualname__)
def test_the_docstring_says_what_it_takes_and_gives(item):
    documentation = inspect.getdoc(item)
    signature = inspect.signature(item)
    # torch describes its own.
    others = {"self", *(inspect.signature(DataLoader).parameters if item is stallscope.DataLoader else ())}
    takes = [name for name in signature.parameters if name not in others]
    if not isinstance(item, type) or not issubclass(item, Exception):
        assert [name for name in takes if not re.search(rf"^ .*\b{name}\b.*: ", documentation, re.M)] == []
    gives = inspect.isfunction(item) and signature.return_annotation not in (None, "None", inspect.Signature.empty)
    assert "Returns:" in documentation or not gives
    assert ">>> " in documentation or item in WITHOUT_EXAMPLE


def test_the_page_of_the_api_says_what_the_docstrings_say():
    script = Path(__file__).resolve().parents[3] / "scripts" / "api_page.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
