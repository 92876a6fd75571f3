"""The compiled part of the dry run:
built once for each version of torch and kept in the user's cache folder.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from planner.errors import UsageError, how_to_install

SOURCES = Path(__file__).resolve().parent / "native"
# Torch's header of all operators takes half of the compiler's time; with the macro, its headers leave it out.
_OPTIONS = ("-fPIC", "-std=c++20", "-O1", "-DAT_PER_OPERATOR_HEADERS")
_LIBRARIES = ("-lc10", "-ltorch_cpu", "-ltorch")


def compiled_library() -> Path:
    """Path of the library for the installed torch, compiled now if it is not in the cache.

    Raises:
        UsageError: no torch or a CUDA build of it, no compiler, or one that fails; says what to do.
    """
    torch = _torch_folder()
    sources = sorted(SOURCES.iterdir())
    content = b"".join(each.read_bytes() for each in sources)
    key = hashlib.sha256(b"\0".join((content, version("torch").encode(), str(torch).encode()))).hexdigest()[
        :16
    ]
    target = _cache_folder() / f"pretended_card-{key}.so"
    if not target.is_file():
        _compile(torch, [each for each in sources if each.suffix == ".cpp"], target)
    return target


def _torch_folder() -> Path:
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise UsageError(f"torch is not installed; {how_to_install('measure')}")
    folder = Path(spec.origin).parent
    if any((folder / "lib").glob("libtorch_cuda.*")):
        raise UsageError(
            "the installed torch is a CUDA build, where the place of the card is taken: dry runs of "
            "programs need the CPU build in another environment (pip install torch --index-url "
            "https://download.pytorch.org/whl/cpu)"
        )
    return folder


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "finetune-planner"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"the cache folder {folder} cannot be made ({error.strerror}); set XDG_CACHE_HOME"
        ) from None
    return folder


def _compile(torch: Path, sources: list[Path], target: Path) -> None:
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    if not compiler or shutil.which(compiler[0]) is None:
        raise UsageError(
            "a dry run of a program needs a C++ compiler once, and there is none: install g++ (Debian: apt "
            "install g++), or name one in CXX"
        )
    includes = [f"-I{torch / 'include'}", f"-I{torch / 'include/torch/csrc/api/include'}"]
    linked = [f"-L{torch / 'lib'}", *_LIBRARIES, f"-Wl,-rpath,{torch / 'lib'}"]
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        objects = [Path(folder) / f"{each.stem}.o" for each in sources]
        commands = [
            [*compiler, *_OPTIONS, *includes, "-c", str(source), "-o", str(made)]
            for source, made in zip(sources, objects, strict=True)
        ]
        with ThreadPoolExecutor() as pool:
            list(pool.map(_run_compiler, commands))
        made = Path(folder) / target.name
        _run_compiler([*compiler, "-shared", *map(str, objects), "-o", str(made), *linked])
        made.replace(target)


def _run_compiler(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = next(
            (line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200]
        )
        raise UsageError(
            f"{command[0]} cannot compile the pretended card for torch {version('torch')}: {reason}"
        )
