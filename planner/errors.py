"""Every error this project raises on purpose, and the exit code each one means.

::

    PlannerError                      exit 1
    +-- UsageError                    exit 2   something typed or written cannot be used
    |   +-- UnknownNameError          exit 2   a name that no catalog knows; lists the nearest
    |   +-- InputFileError            exit 2   a file that cannot be read; names file and line
    |   +-- RefusedCombinationError   exit 2   settings that exclude each other
    +-- LengthOpenError               exit 4   the length of samples decides, and nobody said it
    +-- DoesNotFit                    exit 3   a job that is about to start needs more memory than there is
    +-- NotModelledError              exit 6   understood, but no formula covers it: no verdict
        +-- UnknownArchitectureError  exit 6   no formulas for an architecture; a trace may run its modules
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path

from planner.printing import printable

REFUSED_BY_TOOL = "refused-by-its-tool"
"""What a sentence ends with where the tool of a file, or a package that it runs, stops the job as well."""
_MAX_ECHO_CHARS = 60
MAX_NEAREST = 3
"""Names that a sentence lists as those that may be meant."""
# Several spellings may stand for one name.
_CANDIDATES = 12
# Below this share of letters in common a name says nothing: ``lang`` is no slip of ``link``.
_LIKE = 0.6
# A known name of so many letters is meant by one that begins with it: ``sequence`` for ``seq``.
_LEAST_CHARS = 3


def show(value: object) -> str:
    """``value`` as a message may repeat it: one line, printable, at most 60 characters."""
    text = (
        value
        if isinstance(value, str)
        else repr(value)
        if isinstance(value, float | bool | type(None))
        else _shape(value)
    )
    short = text if len(text) <= _MAX_ECHO_CHARS else text[:_MAX_ECHO_CHARS] + "..."
    return printable(short)


def _shape(value: object) -> str:
    # Huge integers cannot even be printed (Python limits the digits), containers can be cyclic or enormous.
    if isinstance(value, int):
        return str(value) if value.bit_length() < 200 else f"an integer of {value.bit_length()} bits"
    return f"a value of type {type(value).__name__}"


class ExitCode(IntEnum):
    """Process exit codes of ``plan`` (and of ``measure`` where they mean the same)."""

    FITS = 0
    INTERNAL_ERROR = 1
    USAGE = 2
    GPU_MEMORY_SHORT = 3
    UNCERTAIN = 4
    HOST_MEMORY_SHORT = 5
    NOT_MODELLED = 6


def how_to_install(extra: str) -> str:
    """What installs the package with an ``extra``: from the project's folder,
    because the package is on no index.
    """
    return f"install the {extra} extra: pip install '.[{extra}]' in the project's folder"


def name_pattern(name: str) -> re.Pattern[str]:
    """Finds ``name`` in other names, whatever separates its parts: ``qwen3`` is in ``Qwen3-8B``,
    and not in ``qwen-32b``, where its number goes on.  Nothing matches where no letter or digit is left.
    """
    letters = [re.escape(letter) for letter in name if letter.isalnum()]
    if not 0 < len(letters) <= _MAX_ECHO_CHARS:
        return re.compile(r"(?!)")
    ends = r"(?!\d)" if letters[-1].isdigit() else ""
    return re.compile(r"[^a-z0-9]*".join(letters) + ends, re.IGNORECASE)


def is_like(name: str, known: str) -> bool:
    """Whether one may be a slip of the other."""
    return difflib.SequenceMatcher(None, name, known).ratio() >= _LIKE


def _nearest(name: str, known: Iterable[str] | Mapping[str, str]) -> tuple[str, ...]:
    meant = known if isinstance(known, Mapping) else {candidate.lower(): candidate for candidate in known}
    swapped = [known for known in meant if sorted(known) == sorted(name.lower())]
    begin = sorted(filter(name_pattern(name).match, meant), key=lambda known: (len(known), known))
    begin += [known for known in meant if len(known) >= _LEAST_CHARS and name.lower().startswith(known)]
    near = difflib.get_close_matches(name.lower(), meant, n=_CANDIDATES, cutoff=_LIKE)
    return tuple(dict.fromkeys(meant[known] for known in (*swapped, *begin, *near)))


class PlannerError(Exception):
    """Base of all expected failures: one sentence, no traceback."""

    exit_code = ExitCode.INTERNAL_ERROR


class UsageError(PlannerError):
    """Something typed or written cannot be used as it stands."""

    exit_code = ExitCode.USAGE


class UnknownNameError(UsageError):
    """A name that no catalog or enumeration knows.

    ``kind`` says what was looked up ("model", "GPU"), ``known`` what could have been meant: names, or
    spellings in lower case with the name that each stands for.  ``ordered``: the nearest come first already.
    """

    def __init__(
        self,
        kind: str,
        name: str,
        known: Iterable[str] | Mapping[str, str],
        hint: str = "",
        *,
        ordered: bool = False,
    ) -> None:
        self.kind, self.name = kind, name
        self.nearest = (tuple(known) if ordered else _nearest(name, known))[:MAX_NEAREST]
        advice = f"; nearest: {', '.join(self.nearest)}" if self.nearest else ""
        super().__init__(f"unknown {kind} '{name}'{advice}{f' ({hint})' if hint else ''}")


class InputFileError(UsageError):
    """A file that is missing, unreadable, malformed or hostile.  Names the file and, where known,
    the line.
    """

    def __init__(self, path: str | Path, problem: str, line: int | None = None) -> None:
        self.path, self.problem, self.line = str(path), problem, line
        place = f"{path}:{line}" if line is not None else str(path)
        super().__init__(f"{place}: {problem}")


class RefusedCombinationError(UsageError):
    """Settings that exclude each other, or a combination that no library runs."""


def as_one(errors: Sequence[UsageError]) -> UsageError:
    """The error that says all of them, so that nobody mends one to be told of the next."""
    return errors[0] if len(errors) == 1 else UsageError("; also, ".join(map(str, errors)))


class LengthOpenError(PlannerError):
    """Whether a job fits depends on the length of its samples, which its file leaves to the data."""

    exit_code = ExitCode.UNCERTAIN


class DoesNotFit(PlannerError):  # noqa: N818 - reads as what it says, as StopIteration does
    """A job that is about to start needs more memory than there is;
    ``answer`` is the prediction that says so.
    """

    exit_code = ExitCode.GPU_MEMORY_SHORT

    def __init__(self, message: str, answer: object = None) -> None:
        self.answer = answer
        super().__init__(message)


class NotModelledError(PlannerError):
    """Understood, but no formula covers it; there is no verdict rather than a guess."""

    exit_code = ExitCode.NOT_MODELLED


class UnreadKeyError(NotModelledError):
    """A key that may change memory, and that nobody read."""


class NoTrainingError(NotModelledError):
    """A file or command that does other work than a training."""


class UnreadCombinationError(NotModelledError, RefusedCombinationError):
    """Settings that some library may run together, and whose code nobody read: no verdict,
    and a search passes over them.
    """


class UnknownArchitectureError(NotModelledError):
    """A model whose architecture (``model_type``) no program describes."""

    def __init__(self, where: str, model_type: str) -> None:
        self.where, self.model_type = where, show(model_type)
        super().__init__(
            f"{where}: architecture '{self.model_type}' is not modelled; plan ... --trace runs its own "
            "modules on fake tensors, where Transformers ships them and the measure extra is installed"
        )
