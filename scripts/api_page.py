#!/usr/bin/env python3
"""Writes docs/python.md, the reference of the Python package, from its docstrings; with `--check` it says whether that is up to date.

Reads the sources, so that it needs neither torch nor anything built.
"""

import ast
import inspect
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "probe" / "python" / "stallscope"
PAGE = ROOT / "docs" / "python.md"

# Name on the page, file, and the names that its methods are inherited under.
IN_CHUNKS = ("data/pack/in_chunks.py", "InChunks", ["in_chunk_order", "shuffled"])
ITEMS = [
    ("stallscope.DataLoader", "data/loader.py", [("data/resume/position.py", "Positioned", ("state_dict", "load_state_dict"))]),
    ("stallscope.PackedImageFolder", "data/pack/images.py", [IN_CHUNKS]),
    ("stallscope.PackedImages", "data/pack/pictures.py", [IN_CHUNKS]),
    ("stallscope.PackedDataset", "data/pack/dataset.py", [IN_CHUNKS]),
    ("stallscope.Shuffle", "data/pack/shuffle.py", []),
    ("stallscope.PackError", "data/pack/errors.py", []),
    ("stallscope.Checkpointer", "checkpoint/checkpointer.py", []),
    ("stallscope.checkpoint.Start", "checkpoint/start.py", []),
    ("stallscope.CheckpointError", "checkpoint/errors.py", []),
    ("stallscope.step", "steps.py", []),
    ("stallscope.lightning.CheckpointCallback", "lightning.py", []),
    ("stallscope.transformers.use_loader", "transformers.py", []),
    ("stallscope.transformers.CheckpointCallback", "transformers.py", []),
]

HEAD = """# Python API

<!-- Written by scripts/api_page.py from the docstrings; `make docs` brings it up to date. -->

What a training script may import from `stallscope`. None of it is needed to measure a job: `stallscope run -- python train.py` does
that with an unchanged script. [examples/](../examples) has scripts that use it; [packs.md](packs.md), [cache.md](cache.md), [sampling.md](sampling.md)
and [checkpoints.md](checkpoints.md) say what each part does, guarantees and costs.
"""


def tree(file):
    return ast.parse((PACKAGE / file).read_text())


def named(body, name):
    (found,) = [one for one in body if getattr(one, "name", None) == name and one.__class__.__name__.endswith("Def")]
    return found


def signature(name, function):
    """As Python would print it, an argument a line where it is long."""
    arguments = function.args
    if arguments.args and arguments.args[0].arg == "self":
        arguments.args = arguments.args[1:]
    returns = f" -> {ast.unparse(function.returns)}" if function.returns is not None and function.name != "__init__" else ""
    taken = re.split(r", (?=[\w*]+(?::|=|,|$))", ast.unparse(arguments))
    # ast leaves out the spaces that belong around the default of what has a type.
    taken = [re.sub(r"^([\w*]+: [^=]+)=(.*)$", r"\1 = \2", one) for one in taken]
    line = f"{name}({', '.join(taken)}){returns}"
    if len(line) <= 110:
        return line
    return f"{name}(\n" + "".join(f"    {one},\n" for one in taken) + f"){returns}"


def example(lines):
    return ["```python", *lines, "```", ""]


def described(docstring):
    """The page's lines of a docstring in Google's style."""
    text, *sections = re.split(r"^(Args|Returns|Raises|Example)::?\n", inspect.cleandoc(docstring), flags=re.M)
    lines = [*text.strip().splitlines(), ""]
    for title, body in zip(sections[::2], sections[1::2]):
        body = inspect.cleandoc(body).splitlines()
        lines += [f"*{title}*", ""]
        if title == "Example":
            lines += example(body)
        elif title == "Returns":
            lines += [*body, ""]
        else:
            # A name and a colon begin an item, what is indented goes on with it.
            lines += [re.sub(r"^([\w*, ]+): ", r"- `\1`: ", one) if one[:1] != " " else one[2:] for one in body] + [""]
    return lines


def members(name, node, inherited):
    """Methods and fields that have a docstring."""
    functions = [one for one in node.body if isinstance(one, ast.FunctionDef) and not one.name.startswith("_")]
    for file, base, names in inherited:
        functions += [named(named(tree(file).body, base).body, one) for one in names]
    short, lines = name.split(".")[-1], []
    for function in functions:
        decorators = [ast.unparse(one) for one in function.decorator_list]
        if ast.get_docstring(function) is None or any(one.endswith(".setter") for one in decorators):
            continue
        lines += [f"### {short}.{function.name}", ""]
        shown = function.name + (f": {ast.unparse(function.returns)}" if "property" in decorators else "")
        lines += example([shown if "property" in decorators else signature(function.name, function)])
        lines += described(ast.get_docstring(function))
    fields = [
        f"- `{one.target.id}`: `{ast.unparse(one.annotation)}`. " + " ".join(docstring.value.value.split())
        for one, docstring in zip(node.body, node.body[1:])
        if isinstance(one, ast.AnnAssign) and isinstance(docstring, ast.Expr)
    ]
    return fields + [""] * bool(fields) + lines


def page():
    lines = HEAD.splitlines() + [""]
    for name, file, inherited in ITEMS:
        node = named(tree(file).body, name.rpartition(".")[2])
        lines += [f"## {name}", ""]
        if isinstance(node, ast.FunctionDef):
            lines += example([signature(name, node)]) + described(ast.get_docstring(node))
            continue
        made = [one for one in node.body if getattr(one, "name", None) == "__init__"]
        if made and not name.endswith("Error"):
            lines += example([signature(name, made[0])])
        lines += described(ast.get_docstring(node)) + members(name, node, inherited)
    return "\n".join(lines).rstrip() + "\n"


def main():
    if sys.argv[1:] == ["--check"]:
        if not PAGE.exists() or PAGE.read_text() != page():
            sys.exit("docs/python.md is not what the docstrings say: `scripts/api_page.py` brings it up to date")
        return
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
