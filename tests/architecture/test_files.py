"""Files from outside have one reader, ``planner/files``:
no other module opens one or takes its format apart.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOME = "planner/files/"
# What no file from outside is: what this machine or this program itself wrote a moment ago.
EXEMPT = {
    "planner/catalog/hub_request.py": (".open",),  # an answer of the hub, not a file; bounded there
    "planner/configs/writing/text.py": ("yaml.load",),  # ruamel, on a text that the bounded reader has read
    "planner/records/storing.py": (".open",),  # appends, after a look at the last line of its own file
    "measure/dry_run/cuda/compile.py": (".read_bytes",),  # the project's own C++
    "measure/dry_run/cuda/cuda_bindings.py": (".read_text",),  # a file of the installed torch
    "measure/dry_run/parent.py": (".read_text",),  # the answer of its own child
    "measure/dry_run/lay_out.py": (".read_text",),  # the same
    "measure/trace/engine_program.py": (".read_text", "pickle.loads"),  # the job that its parent wrote
    "measure/dry_run/libraries/files/holes.py": ("open",),  # one that torch has opened as well
    # the program's own file, before the program changes its copy
    "measure/dry_run/sandbox.py": (".read_bytes",),
    # the program's own image, which it hands to torchvision
    "measure/dry_run/libraries/cuda_builds.py": (".open",),
    "measure/bundle.py": (".read_text", "tomllib.loads"),  # the project's own pyproject.toml
    "measure/run/cases/case_folder.py": (".open",),  # locks of its own folders
    "measure/run/folder_lock.py": (".open",),  # locks of the folder of records
    "measure/run/readings/environment.py": (".read_text",),  # /proc, and version.py of the installed torch
    "measure/run/readings/host_memory.py": (".read_text",),  # /proc and /sys
    "measure/run/launcher.py": (".read_bytes", ".read_text"),  # logs and results of its own workers
    "measure/run/protocol.py": (".open",),  # messages of its own workers
    "measure/worker/worker.py": (".read_text",),  # the job that its parent wrote
    "measure/worker/zygote.py": ("os.open",),  # /dev/null, and the log of its own worker
}
METHODS = frozenset({"open", "read_text", "read_bytes"})
FUNCTIONS = frozenset(
    {
        "open", "io.open", "io.FileIO", "codecs.open", "os.open", "os.fdopen", "mmap.mmap", "fileinput.input",
        "gzip.open", "gzip.GzipFile", "gzip.decompress", "zlib.decompress", "zlib.decompressobj", "bz2.open",
        "lzma.open",
        "zipfile.ZipFile", "tarfile.open", "json.load", "tomllib.load", "tomllib.loads", "csv.reader",
        "csv.DictReader",
        "yaml.load", "yaml.load_all", "yaml.safe_load", "yaml.safe_load_all", "yaml.full_load",
        "yaml.unsafe_load",
        "pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.load", "marshal.loads", "shelve.open",
        "torch.load",
        "numpy.load", "numpy.loadtxt", "numpy.genfromtxt", "numpy.fromfile", "numpy.memmap",
    }
)  # fmt: skip
# Rows of CSV are taken from a text that `planner/files` has read.
FROM_TEXT = frozenset({"csv.reader", "csv.DictReader"})


def openings(text: str) -> list[tuple[int, str]]:
    """Line and name of each way in which the module ``text`` reads a file, by name or by method."""
    tree = ast.parse(text)
    names = dict(_imports(tree))
    return [
        (node.lineno, found)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and not _writes(node) and (found := _opening(node, names))
    ] + [
        (argument.lineno, found)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for argument in (*node.args, *(keyword.value for keyword in node.keywords))
        if (found := _dotted(argument, names)) in FUNCTIONS
    ]


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((each.asname or each.name, each.name) for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((each.asname or each.name, f"{node.module}.{each.name}") for each in node.names)


def _dotted(node: ast.AST, names: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    return f"{_dotted(node.value, names)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def _opening(call: ast.Call, names: dict[str, str]) -> str:
    name = _dotted(call.func, names)
    if name in FROM_TEXT:
        source = call.args[0] if call.args else None
        return "" if isinstance(source, ast.Call) and _dotted(source.func, names) == "io.StringIO" else name
    if name in FUNCTIONS:
        return name
    return f".{call.func.attr}" if isinstance(call.func, ast.Attribute) and call.func.attr in METHODS else ""


def _writes(call: ast.Call) -> bool:
    """Whether the mode is one of writing only."""
    said = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    modes = [each.value for each in said if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return any(mode and set(mode) <= set("wxabt") and set(mode) & set("wxa") for mode in modes)


def test_no_other_module_opens_a_file_from_outside() -> None:
    """Whatever reads a file is in ``planner/files``, or on the list of what is no file from outside."""
    found = {
        f"{path.relative_to(ROOT).as_posix()}:{line}: {name}"
        for folder in ("planner", "measure")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not (where := path.relative_to(ROOT).as_posix()).startswith(HOME)
        for line, name in openings(path.read_text(encoding="utf-8"))
        if name not in EXEMPT.get(where, ())
    }
    assert found == set()


def test_no_exemption_outlives_its_reason() -> None:
    """Each file of the list still reads in the way that it is excused for."""
    for where, names in EXEMPT.items():
        assert {name for _, name in openings((ROOT / where).read_text(encoding="utf-8"))} >= set(names), where


@pytest.mark.parametrize(
    "line",
    [
        "open(name)",
        "path.open('rb')",
        "path.open('r+b')",
        "path.read_text(encoding='utf-8')",
        "(folder / name).read_bytes()",
        "import gzip as g; g.open(name)",
        "from tomllib import loads as parse; parse(text)",
        "import json; json.load(stream)",
        "import yaml; yaml.safe_load(text)",
        "import numpy as np; np.load(name)",
        "import csv; csv.reader(stream)",
        "import pickle; list(map(pickle.loads, rows))",
    ],
)
def test_each_way_to_read_a_file_is_noticed(line: str) -> None:
    """Under any name that it is imported by."""
    assert openings(line)


@pytest.mark.parametrize(
    "line",
    [
        "path.open('wb')",
        "open(os.devnull, 'w')",
        "import gzip; gzip.GzipFile(fileobj=text, mode='wb')",
        "import csv, io; csv.reader(io.StringIO(text), strict=True)",
        "from planner.files.reading import read_text; read_text(path)",
        "import json; json.loads(text)",
    ],
)
def test_what_writes_or_takes_a_text_is_left_alone(line: str) -> None:
    """Writing, the one reader itself, and texts."""
    assert openings(line) == []
