"""What was assumed: each value that nobody has,
by the line of the program or of a library that asked for it.
"""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from measure.trace.assumed import Assumed

# Files that only pass a question on.
_OWN = str(Path(__file__).resolve().parents[1])
_PASSES_ON = ("/torch/", "/contextlib.py")


_TAKEN = {
    "a value": "1 for numbers, no for questions",
    "values copied to the host": "1 for numbers, no for questions, experts in turn",
    "how many elements are chosen": "all of them",
    "whether Inductor pads a product": "no",
}


class NotHereError(Exception):
    """A file that the program needs and that is not here; a run that fails behind it is refused."""


LET_STAND_IN = "download it, or let one stand in with --data FILE or --lengths TOKENS"
"""What to do about a tokenizer, a processor or a data set that is not here."""


def not_here(kind: type[Exception], what: str) -> Exception:
    """An error of a ``kind`` that the program may catch, with what to do."""
    # A traceback shows where a class comes from.
    made: type[Exception] = type(kind.__name__, (NotHereError, kind), {"__module__": kind.__module__})
    return made(what)


def missing_behind(error: BaseException | None) -> BaseException | None:
    """What lies behind an error, where that is a file that nobody has here."""
    while error is not None and not isinstance(error, NotHereError):
        error = error.__cause__ or error.__context__
    return error


def missing_module(error: BaseException | None) -> str | None:
    """What to do where an import ended the program because a package is not installed.  A name that a
    package of another version lacks is an error of the program.
    """
    while error is not None and not isinstance(error, ModuleNotFoundError):
        # Of what is only raised while an import failed, that was not the reason.
        error = error.__cause__ or (error.__context__ if isinstance(error, ImportError) else None)
    name = ((error and error.name) or "").partition(".")[0]
    if not name or name in sys.modules or find_spec(name) is not None:
        return None
    return (
        f"module '{name}' is neither in the program's folder nor installed: install the package that has it "
        f"('{sys.executable} -m pip install {name}', if it has the same name)"
    )


class Guesses:
    """Counts guesses and refusals while the program runs."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._files: Counter[tuple[str, str, str]] = Counter()
        self.refusals: dict[tuple[str, str], str] = {}
        self.lacks_data = False

    def guess(self, what: str, op: str) -> None:
        """Count a value that was taken for one that nobody has."""
        self._counts[what, op, _call_site()] += 1

    def assume(self, what: str, value: str, of: str) -> None:
        """Note something that was put in place of a file."""
        self._files[what, value, of] += 1

    def refuse(self, why: str, op: str) -> None:
        """Remember an operator that cannot be pretended."""
        self.refusals.setdefault((op, why), _call_site())

    def lack_data(self) -> None:
        """Note that the program found no tokenizer or data set, which others may stand in for."""
        self.lacks_data = True

    def listed(self) -> list[Assumed]:
        """All guesses, the most frequent first."""
        files = [Assumed(what, value, of, _often(count)) for (what, value, of), count in self._files.items()]
        return files + [
            Assumed(what, _TAKEN.get(what, "nothing"), place, f"{_often(count)}, by {op}")
            for (what, op, place), count in self._counts.most_common()
        ]


def _often(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _call_site() -> str:
    """The innermost line outside of torch and of this package."""
    # There is no public way to walk up the stack as cheaply.
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    last = "unknown place"
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_OWN):
            last = f"{_short(file)}:{frame.f_lineno} ({frame.f_code.co_name})"
            if not file.startswith("<") and all(part not in file for part in _PASSES_ON):
                return last
        frame = frame.f_back
    return last


def raised_at(error: BaseException) -> str:
    """The innermost line outside of torch and of this package that an error came from."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [each for each in frames if not each.filename.startswith((_OWN, "<"))]
    named = [each for each in outside if all(part not in each.filename for part in _PASSES_ON)]
    last = (named or outside or frames)[-1]
    return f"{_short(last.filename)}:{last.lineno} ({last.name})"


def _short(file: str) -> str:
    """A path below the folder of installed packages, or the name of the program's own file."""
    _, found, rest = file.rpartition("site-packages/")
    return rest if found else Path(file).name
