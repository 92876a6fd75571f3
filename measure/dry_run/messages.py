"""What the child is told and what it answers, as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from measure.dry_run.cuda.card import CardFacts

Ending = Literal["steps", "ended", "failed", "refused"]
ANSWER_FILE, STACKS_FILE = "answer.json", "stacks.txt"
# What the list of assumptions calls what another stands in for.
DATA_SET, TOKENIZER = "data set", "tokenizer"


@dataclass(frozen=True, slots=True)
class ProgramJob:
    """A program and the card that it runs on.

    ``library``: the compiled part.  ``folder``: where the answer goes, the program's own folders are below.
    ``allocator``: text as in ``PYTORCH_CUDA_ALLOC_CONF``.  ``files``: contents by name, for the folder that
    the program sees.  ``stands_in``: whether a tokenizer that is not there may be replaced; ``rows``: a file
    that data sets may be replaced by.  ``variables``: of the program's environment, beside the caller's.
    ``checkpoints``: models by the folders of that folder that hold them, without weights.
    ``evaluates``: whether the program evaluates after the last step, which is waited for.
    ``invented``: columns of ``rows`` where nobody has any; the program says what it misses.
    """

    library: str
    folder: str
    command: tuple[str, ...]
    card: CardFacts
    n_steps: int
    timeout_s: float
    allocator: str
    trust_remote_code: bool
    files: dict[str, str] = field(default_factory=dict)
    stands_in: bool = False
    rows: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    checkpoints: dict[str, str] = field(default_factory=dict)
    evaluates: bool = False
    invented: tuple[str, ...] = ()

    def to_fields(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @staticmethod
    def of_fields(fields: dict[str, Any]) -> ProgramJob:
        """From plain values."""
        card = dict(fields["card"])
        card["compute_capability"] = tuple(card["compute_capability"])
        lists = {name: tuple(fields[name]) for name in ("command", "invented")}
        return ProgramJob(**{**fields, **lists, "card": CardFacts(**card)})


def events_file(card: int) -> str:
    """Name of the file with what one card was asked for."""
    return f"events-{card}.jsonl"


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """How the program ended.  ``reason`` says why it failed or was refused;
    ``assumed`` are fields of :class:`Assumed`.

    ``steps``: optimizer steps that ran.  ``most_tokens``: rows and tokens of the largest batch.
    ``allocator``: what the variables said that torch's allocator reads, where the program set them or was
    given them.  ``exit_code``: the program's own, if it ended itself.  ``cards``: numbers of those that it
    used.  ``lacks_data``: whether it found no tokenizer or data set.  ``lacks_column``, ``lacks_rows``: what
    it missed in rows that were invented.
    """

    ending: Ending
    reason: str
    exit_code: int
    steps: int
    micro_steps: int
    most_tokens: tuple[int, int]
    allocator: str
    assumed: tuple[dict[str, str], ...]
    cards: tuple[int, ...] = ()
    lacks_data: bool = False
    lacks_column: str = ""
    lacks_rows: int = 0
