"""Launchers in this process: the Python program that one would start runs here,
with the variables that it would give it.
"""

# ruff: noqa: SLF001 - the one place where every way to start a process comes by has no public name

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import torch

from measure.dry_run.guesses import Guesses
from measure.dry_run.libraries.importing import OnImport
from measure.dry_run.run_program import is_python_program, run_program

_WHAT = "a process that the program would start"
_EXECS = {"execv": 0, "execvp": 0, "execve": 1, "execvpe": 1}


class Launches:
    """Takes over what launchers start.  ``n_cards``: as many processes run together,
    of which this one is the first.
    """

    def __init__(self, guesses: Guesses, n_cards: int) -> None:
        self._guesses, self._n_cards = guesses, n_cards
        self._ran: set[tuple[str, ...]] = set()

    def install(self, imports: OnImport) -> None:
        """From now on, in this process and for good."""
        self._take_processes()
        for name, takes_variables in _EXECS.items():
            setattr(os, name, self._replaced(getattr(os, name), bool(takes_variables)))
        imports.add("torch.distributed.run", self._take_ranks)
        for module in (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
            setattr(module, "spawn", self._spawn)  # noqa: B010 - types of torch do not allow it

    def _take_processes(self) -> None:
        start: Any = subprocess.Popen._execute_child  # type: ignore[attr-defined]
        names = list(inspect.signature(start).parameters)

        def execute(process: Any, *values: Any) -> None:
            given = dict(zip(names, (process, *values), strict=True))
            words = _words(given["args"])
            if given["shell"] or not is_python_program(words):
                start(process, *values)
                return
            # The ends of pipes that the process itself would hold; files are the program's own.
            for end, other in (("p2cread", "p2cwrite"), ("c2pwrite", "c2pread"), ("errwrite", "errread")):
                if given[other] != -1:
                    os.close(given[end])
            self._run(words, given["env"], given["cwd"])
            process.pid, process.returncode = os.getpid(), 0

        subprocess.Popen._execute_child = execute  # type: ignore[attr-defined]

    def _replaced(self, own: Callable[..., Any], takes_variables: bool) -> Callable[..., Any]:
        def run(path: Any, args: Sequence[Any], *variables: Any) -> NoReturn:
            words = [os.fsdecode(path), *map(os.fsdecode, args[1:])]
            if not is_python_program(words):
                own(path, args, *variables)
            self._run(words, variables[0] if takes_variables else None, None)
            raise SystemExit(0)

        return run

    def _take_ranks(self, module: ModuleType) -> None:
        """``torchrun`` and all that use it: the agent that starts and watches processes is left out."""
        launches = self

        class FirstRank:
            def __init__(self, config: Any, entrypoint: Any) -> None:
                self._config, self._entrypoint = config, entrypoint

            def __call__(self, *args: Any) -> dict[int, Any]:
                config = self._config
                launches._check_number(config.nproc_per_node, config.max_nodes)
                variables = {**os.environ, **_rank_variables(config.nproc_per_node, config.run_id)}
                if callable(self._entrypoint):
                    with _variables(variables):
                        return {0: self._entrypoint(*args)}
                launches._run([self._entrypoint, *map(str, args)], variables, None)
                return {0: None}

        module.elastic_launch = FirstRank  # type: ignore[attr-defined]

    def _spawn(
        self, fn: Callable[..., Any], args: tuple[Any, ...] = (), nprocs: int = 1, *_: Any, **__: Any
    ) -> None:
        self._check_number(nprocs, 1)
        fn(0, *args)

    def _check_number(self, n_processes: int, n_machines: int) -> None:
        if n_machines != 1:
            self._refuse(f"starts processes on {n_machines} machines, and a dry run has one")
        if n_processes != self._n_cards:
            self._refuse(
                f"starts {n_processes} processes, but --gpu names {self._n_cards} cards; make both equal"
            )

    def _refuse(self, why: str) -> NoReturn:
        self._guesses.refuse(why, "the launcher")
        raise NotImplementedError(f"the launcher {why}")

    def _run(self, words: Sequence[str], variables: Mapping[str, str] | None, folder: Any) -> None:
        """Once for each command: a launcher starts one process for each card, and all do the same.  A program
        that starts its own partners, as Lightning's does, is itself the first of them.
        """
        shown = 4 if "-m" in words[:3] else 3
        name = " ".join(Path(each).name for each in words[:shown])
        self._guesses.assume(_WHAT, "run in this process", name)
        key = tuple(words)
        if key in self._ran or (variables or {}).get("LOCAL_RANK", "0") != "0":
            return
        self._ran.add(key)
        with _variables(variables), _folder(folder), _argv():
            try:
                run_program(words)
            except SystemExit as error:
                if error.code:
                    raise


def _words(args: Any) -> list[str]:
    """A command line as words, however it was given."""
    return [os.fsdecode(each) for each in ([args] if isinstance(args, str | bytes | os.PathLike) else args)]


def _rank_variables(n_processes: int, run_id: str) -> dict[str, str]:
    """What torch's agent tells the first of its processes (torch 2.13
    elastic/agent/server/local_elastic_agent.py).
    """
    zero = (
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_MAX_RESTARTS",
    )
    number = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE")
    return {
        **dict.fromkeys(zero, "0"),
        **dict.fromkeys(number, str(n_processes)),
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }


@contextmanager
def _variables(wanted: Mapping[str, str] | None) -> Iterator[None]:
    if wanted is None:
        yield
        return
    # Some launchers hand on os.environ itself, which would be empty after it is cleared.
    before, after = dict(os.environ), dict(wanted)
    os.environ.clear()
    os.environ.update(after)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _folder(wanted: Any) -> Iterator[None]:
    before = Path.cwd()
    if wanted is not None:
        os.chdir(wanted)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def _argv() -> Iterator[None]:
    before = sys.argv, sys.path[:]
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before
