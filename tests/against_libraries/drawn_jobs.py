"""Jobs drawn by a rule, by the trace on fake tensors and by the dry run of ``programs/drawn.py``:
``python -m tests.against_libraries.drawn_jobs [NUMBER ...]`` runs what ``programs/drawn.csv`` lacks, or the
draws of these numbers, and writes the table anew.
"""

from __future__ import annotations

import csv
import json
import logging
import random
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from matrix.models import MODELS, write_config

from measure.cli.dry_run import cards_of, facts_of
from planner.allocator.events import AllocEvent
from planner.allocator.replay import replay
from planner.allocator.settings import rounded_bytes
from planner.domain.scenario import Scenario
from planner.errors import PlannerError
from planner.units import MIB
from planner.words import words
from tests.jobs import resolved

TABLE, PROGRAM = HERE / "programs" / "drawn.csv", HERE / "programs" / "drawn.py"
SEED, ANSWERED = 16, 60
METHODS = ("full", "lora", "qlora", "int8")
CHECKPOINTS = ("none", "not reentrant", "reentrant")
ATTENTIONS = ("eager", "sdpa", "flash2")
OPTIMIZERS = words("adamw_torch adamw_torch_fused adamw_8bit paged_adamw_8bit lion adafactor sgd")
PRECISIONS = ("bf16-mixed", "bf16")
SHAPES = ((1, 2048), (2, 1024), (4, 512), (2, 384), (1, 512))
CARD = "a100-80-sxm"
# Of small blocks.
SEGMENT_BYTES = 2 * MIB
# What decides whether a stack's program is as the trace's step is; see matrix/cells.py.
_SWITCHES = "runs_trainer=false,loader_reserves=nothing,loads_sorted=false"


@dataclass(frozen=True, slots=True)
class Job:
    """One draw."""

    number: int
    model: str
    method: str
    checkpointing: str
    attention: str
    optimizer: str
    precision: str
    batch: int
    seq: int

    def flags(self) -> dict[str, object]:
        """But for the model."""
        mixed = "bf16-mixed" if self.method in ("qlora", "int8") else self.precision
        return {
            "method": self.method,
            "gpu": CARD,
            "seq": self.seq,
            "batch": self.batch,
            "gradient_checkpointing": self.checkpointing != "none",
            "checkpoint_reentrant": self.checkpointing == "reentrant",
            "attention": self.attention,
            "optimizer": self.optimizer,
            "precision": mixed,
            "switches": _SWITCHES,
        }


def draws() -> Iterator[Job]:
    """The rule: models in shuffled order, one after the other, each with a draw of everything else."""
    chance = random.Random(SEED)
    number = 0
    while True:
        for model in chance.sample(MODELS, len(MODELS)):
            choices = (METHODS, CHECKPOINTS, ATTENTIONS, OPTIMIZERS, PRECISIONS)
            method, again, attention, optimizer, precision = (chance.choice(each) for each in choices)
            batch, seq = chance.choice(SHAPES)
            yield Job(number, model, method, again, attention, optimizer, precision, batch, seq)
            number += 1


def scenario_of(job: Job, folder: Path) -> Scenario:
    """The job with a small model, whose configuration goes to ``folder``.

    Raises:
        PlannerError: a combination that is refused; says why.
    """
    return resolved({**job.flags(), "model": str(write_config(job.model, folder, small=True))})


def traced(job: Job) -> list[AllocEvent]:
    """What the trace says, on fake tensors.

    Raises:
        PlannerError: the job cannot be traced; says why.
    """
    from measure.trace.traced_job import TraceOptions, trace_events

    with TemporaryDirectory() as folder:
        return trace_events(scenario_of(job, Path(folder)), TraceOptions(all_layers=True))


def dry_run_of(job: Job) -> list[AllocEvent]:
    """What the program says, on the pretended card."""
    from measure.dry_run.cuda.compile import compiled_library
    from measure.dry_run.messages import ProgramJob
    from measure.dry_run.parent import dry_run

    with TemporaryDirectory() as folder:
        fields = write_config(job.model, Path(folder), small=True).read_text(encoding="utf-8")
    command, card = ("python", str(PROGRAM), json.dumps(job.flags())), facts_of(*cards_of({"gpu": CARD}))
    asked = ProgramJob(
        str(compiled_library()), "", command, card, 2, 600.0, "", False, {"model/config.json": fields}
    )  # fmt: skip
    return dry_run(asked).cards[0]


def of_steps(events: Sequence[AllocEvent]) -> list[AllocEvent]:
    """What is allocated and freed from the first lookup of tokens to the end of the backward pass behind the
    first optimizer step.  What was there before is left out.
    """
    looked_up = (each.phase == "forward" and each.op.startswith("aten.embedding") for each in events)
    first = next(number for number, is_first in enumerate(looked_up) if is_first)
    last = max(number for number, each in enumerate(events) if each.phase == "backward_2")
    steps, own = [], set()
    for each in events[first : last + 1]:
        if each.action == "alloc" and each.n_bytes:
            own.add(each.block)
        if each.block in own:
            steps.append(each)
        if each.action == "free":
            own.discard(each.block)
    return steps


def requests(steps: Sequence[AllocEvent]) -> list[int]:
    """Sizes in order."""
    return [rounded_bytes(each.n_bytes) for each in steps if each.action == "alloc"]


def peaks(steps: Sequence[AllocEvent]) -> tuple[int, int]:
    """Allocated and reserved bytes of an allocator that has nothing else."""
    phases = replay(list(steps)).phases
    return max(each.allocated_bytes for each in phases), max(each.reserved_bytes for each in phases)


@dataclass(frozen=True, slots=True)
class Difference:
    """Requests in which both sides differ: the operators that ask for them on one side alone, and why.

    ``most``: the share of a peak that they move.
    """

    name: str
    trace: frozenset[str]
    dry: frozenset[str]
    why: str
    most: float = 2e-4


DIFFERENCES = (
    Difference(
        "index",
        frozenset(),
        frozenset({"aten.index.Tensor"}),
        "CUDA copies indices that are laid out unlike each other, 8 bytes for each number "
        "(torch 2.13 ATen/native/TensorAdvancedIndexing.cpp AdvancedIndex); fake tensors of a CPU do not",
    ),
    Difference(
        "code books",
        frozenset(),
        frozenset({"aten._to_copy.default"}),
        "both code books of 8-bit states go to the card with the first step, 1 KiB each (bitsandbytes 0.50.2 "
        "optim/optimizer.py fill_qmap); the trace has them there from the beginning",
    ),
    Difference(
        "small 4-bit products",
        frozenset({"aten.empty.memory_format", "aten.add.Tensor"}),
        frozenset(),
        "up to 1,536 tokens are multiplied with some small 4-bit matrices as they are (bitsandbytes 0.50.2 "
        "backends/cuda/ops.py _gemm_4bit_use_custom_cuda); the trace expands all",
    ),
    Difference(
        "bias of a router",
        frozenset({"aten.topk.default", "aten.masked_fill.Scalar"}),
        frozenset({"aten.add.Tensor", "aten.topk.default", "aten.masked_fill.Scalar"}),
        "from_pretrained keeps the bias by which experts are chosen in fp32 (transformers 5.23 "
        "_keep_in_fp32_modules_strict); the trace makes it in the dtype of the weights",
    ),
)

FREES = Difference(
    "order of frees",
    frozenset(),
    frozenset(),
    "stand-ins of int8 layers let small temporaries go in another order than bitsandbytes' own code: one "
    "segment of 2 MiB more or less is reserved",
    0.02,
)


def named(trace: Sequence[AllocEvent], dry: Sequence[AllocEvent]) -> str:
    """Names of the differences between two streams, by semicolons; ``unknown`` is among them where requests
    differ for another reason.
    """
    asked = [[each for each in steps if each.action == "alloc"] for steps in (trace, dry)]
    one, other = (requests(steps) for steps in asked)
    found = set()
    for tag, first, last, begin, end in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        if tag != "equal":
            ops = [{each.op for each in asked[0][first:last]}, {each.op for each in asked[1][begin:end]}]
            known = (each.name for each in DIFFERENCES if ops[0] <= each.trace and ops[1] <= each.dry)
            found.add(next(known, "unknown"))
    return ";".join(sorted(found))


def row_of(job: Job) -> dict[str, str]:
    """The job through both, or why it is not run."""
    row = dict.fromkeys(COLUMNS, "") | {name: str(value) for name, value in asdict(job).items()}
    try:
        trace = traced(job)
    except PlannerError as error:
        return row | {"refused": " ".join(str(error).split())}
    return row | compared(trace, dry_run_of(job))


def compared(trace: Sequence[AllocEvent], dry: Sequence[AllocEvent]) -> dict[str, str]:
    """Columns of both sides."""
    row: dict[str, str] = {}
    sides = {"trace": of_steps(trace), "dry": of_steps(dry)}
    one, other = (requests(steps) for steps in sides.values())
    for side, steps in sides.items():
        allocated, reserved = peaks(steps)
        row |= {f"{side}_allocated_bytes": str(allocated), f"{side}_reserved_bytes": str(reserved)}
    names = named(*sides.values())
    moved_bytes = int(row["dry_reserved_bytes"]) - int(row["trace_reserved_bytes"])
    if abs(moved_bytes) == SEGMENT_BYTES:
        names = ";".join(filter(None, (names, FREES.name)))
    return row | {"trace_requests": str(len(one)), "dry_requests": str(len(other)), "differences": names}


COLUMNS = (
    *Job.__dataclass_fields__,
    "trace_requests",
    "dry_requests",
    "trace_allocated_bytes",
    "dry_allocated_bytes",
    "trace_reserved_bytes",
    "dry_reserved_bytes",
    "differences",
    "refused",
)


def read() -> list[dict[str, str]]:
    """The stored rows."""
    if not TABLE.is_file():
        return []
    with TABLE.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(rows: Sequence[dict[str, str]]) -> None:
    """Store ``rows`` in the order of their draws."""
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: int(row["number"])))


def main(numbers: Sequence[int]) -> None:
    """Run draws until enough are answered, and write after each."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    rows = {int(row["number"]): row for row in read()}
    for job in islice(draws(), 4 * ANSWERED):
        answered = sum(not row["refused"] for number, row in rows.items() if number < job.number)
        if (job.number not in numbers) if numbers else (job.number in rows or answered >= ANSWERED):
            continue
        rows[job.number] = row_of(job)
        sys.stdout.write(" ".join(f"{each}" for each in rows[job.number].values()) + "\n")
        sys.stdout.flush()
        write(list(rows.values()))


if __name__ == "__main__":
    main([int(each) for each in sys.argv[1:]])
