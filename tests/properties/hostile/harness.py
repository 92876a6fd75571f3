"""Runs ``plan`` and ``measure`` in this process and holds every answer to the same rules.

The rules: an exit code that says something about the input (never 1), no traceback, at most five seconds
(a search: ten) and one GiB, and no character in the output that steers a terminal.  Seconds are those that
the program itself runs: not those of a busy machine, nor the kernel's.  CPython 3.11 gives the end of its
frame stack back on each call that returns across it, and at some depths of pytest a loop does that a hundred
thousand times.  What waits or keeps the kernel busy is ended after a while.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType

from hypothesis import HealthCheck, Phase, settings

from measure.cli.main import main as measure_main
from planner.cli.main import main as plan_main

PROGRAMS: dict[str, Callable[[Sequence[str]], int]] = {"plan": plan_main, "measure": measure_main}
EXIT_CODES = frozenset({0, 2, 3, 4, 5, 6})
MAX_S, SEARCH_MAX_S = 5.0, 10.0
# The kernel's seconds and those of a shared processor may come to so many times as much.
_MAX_SLOWDOWN = 4.0
_MAX_WAIT_S = 120.0
MAX_BYTES = 2**30
# Embeddings, overrides and isolates change the order in which a terminal shows the text around them.
_STEERING = frozenset(
    map(chr, (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)))
)
_PLAIN = frozenset("\n\t")
_SHOWN_CHARS = 600
# How many times more examples `make explore` tries than `make test`.
_EXPLORED = 8


@dataclass(frozen=True, slots=True)
class Answer:
    """What one call of a program ended with."""

    code: int
    out: str
    err: str


class _TooSlow(BaseException):
    """Not an ``Exception``, so that no program can mistake it for trouble of its own."""


def examples(n: int) -> settings:
    """Settings of a property: ``n`` examples in ``make test``, many more in ``make explore``."""
    count = n if settings.default.derandomize else n * _EXPLORED
    # A file of hostile content is large and slow to draw beside the few bytes that matter.
    unchecked = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
    # To explain a failure, every line is traced, which takes longer than a program may.
    phases = [phase for phase in Phase if phase is not Phase.explain]
    return settings(max_examples=count, suppress_health_check=unchecked, phases=phases)


def assert_sound(program: str, *arguments: str, files: Sequence[Path] = ()) -> Answer:
    """Run ``program`` with ``arguments`` and check the rules; ``files`` are shown when one is broken.

    Raises:
        AssertionError: a rule is broken; names it with the command, the files and the output.
    """
    _warm_up(program)
    found, broken = _attempt(program, arguments)
    broken = broken or _broken_rule(found, arguments)
    if broken:
        raise AssertionError(
            f"{broken}\n{_described(program, arguments, files)}\n{_ends(found.out)}\n{_ends(found.err)}"
        )
    return found


_TEXT_ONLY = frozenset({"--help", "-h", "--version", "--show-completion", "--install-completion"})


def _broken_rule(found: Answer, arguments: Sequence[str]) -> str:
    """The first rule that an answer breaks, empty where it keeps all."""
    text = found.out + found.err
    if found.code not in EXIT_CODES or "Traceback (most recent call last)" in text:
        return f"exit code {found.code}: an internal error"
    if steering := sorted(_STEERING.intersection(text) - _PLAIN):
        return f"characters that steer a terminal: {steering}"
    if found.code != 0 and not text.strip():
        return f"exit code {found.code} without a word"
    # Help, the version and completions are text, whatever else is asked for.
    asked_for_json = "--json" in arguments and not _TEXT_ONLY.intersection(arguments)
    return _broken_json(found.out) if asked_for_json and found.out else ""


def _broken_json(text: str) -> str:
    """What is wrong with a document that was asked for as JSON."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no number of JSON")

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError as error:
        return f"--json wrote no JSON: {error}"
    return ""


def _attempt(program: str, arguments: Sequence[str]) -> tuple[Answer, str]:
    """The answer, and which limit it broke."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    most_s = SEARCH_MAX_S if "search" in arguments[:1] else MAX_S
    before, start, broken, code = _peak_bytes(), os.times().user, "", -1
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            with _in_time(most_s * _MAX_SLOWDOWN), _at_most_more(MAX_BYTES):
                code = PROGRAMS[program](list(arguments))
        except _TooSlow:
            broken = f"more than {most_s * _MAX_SLOWDOWN} s of work, or {_MAX_WAIT_S} s of waiting"
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever leaves the program is a fault of it
            broken = f"{type(error).__name__} left the program: {str(error)[:200]}"
    spent, grown = os.times().user - start, _peak_bytes() - before
    if not broken and (spent > most_s or grown > MAX_BYTES):
        broken = (
            f"{spent:.1f} s and {grown / 2**20:.0f} MiB more, above {most_s} s or {MAX_BYTES / 2**20:.0f} MiB"
        )
    return Answer(code, _text_of(out), _text_of(err)), broken


def _text_of(stream: io.TextIOWrapper) -> str:
    stream.flush()
    content = stream.buffer
    assert isinstance(content, io.BytesIO)
    return content.getvalue().decode("utf-8", "surrogateescape")


@contextlib.contextmanager
def _in_time(most_s: float) -> Iterator[None]:
    """Ends what takes longer, even where it waits for a pipe.
    Without effect where there are no such timers (Windows).
    """
    if not hasattr(signal, "setitimer"):
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise _TooSlow

    timers = ((signal.ITIMER_PROF, signal.SIGPROF, most_s), (signal.ITIMER_REAL, signal.SIGALRM, _MAX_WAIT_S))
    before = [signal.signal(number, stop) for _, number, _ in timers]
    for timer, _, seconds in timers:
        # Again and again: one exception may be lost in a destructor.
        signal.setitimer(timer, seconds, 0.5)
    try:
        yield
    finally:
        for timer, _, _ in timers:
            signal.setitimer(timer, 0)
        for (_, number, _), handler in zip(timers, before, strict=True):
            signal.signal(number, handler)


@contextlib.contextmanager
def _at_most_more(n_bytes: int) -> Iterator[None]:
    """Lets this process have ``n_bytes`` more than now,
    so that a hostile file cannot take the machine.  Linux only.
    """
    if sys.platform != "linux":
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")
    wanted = now + n_bytes
    if resource.RLIM_INFINITY not in (soft, hard):
        wanted = min(wanted, soft)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _peak_bytes() -> int:
    """The most memory that this process has had; 0 where the system does not say."""
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@cache
def _warm_up(program: str) -> None:
    """Import what the first call imports, so that neither its time nor its memory counts for a file."""
    first = {
        "plan": ["--model", "7b", "--gpu", "4090", "--seq", "512", "--method", "lora"],
        "measure": ["--version"],
    }
    with contextlib.redirect_stdout(io.StringIO()):
        PROGRAMS[program](first[program])
        if program == "measure":
            import planner.allocator.documents.summary  # noqa: F401
    # Nor does what other tests left behind, which each collection of garbage would look through again.
    gc.freeze()


def _described(program: str, arguments: Sequence[str], files: Sequence[Path]) -> str:
    shown = "\n".join(f"{file.name}: {_start_of(file)!r}" for file in files)
    return f"{program} {' '.join(map(ascii, arguments))}\n{shown}"


def _start_of(file: Path) -> bytes:
    return file.read_bytes()[:_SHOWN_CHARS] if file.is_file() else b"not a regular file"


def _ends(text: str) -> str:
    """The beginning and the end of a long text."""
    return text if len(text) <= 2 * _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]} ... {text[-3 * _SHOWN_CHARS :]}"
