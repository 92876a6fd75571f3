# ruff: noqa: T201 - it prints what is held out
"""How far known architectures are from a plain decoder of the same sizes: ``make ranges``.

Each architecture of the catalog is compared by its smallest model, which reads text alone, with Llama's
decoder of its sizes (:mod:`planner.memory.bounds`).  The ends of what was found are
``data/unmodelled.toml``, rounded outwards.  Then each architecture is held out: how many of its jobs lie
within the ends of the others.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from planner.catalog.described import Family
from planner.catalog.location import data_dir
from planner.catalog.models import model_entry, model_ids, spec_of
from planner.catalog.unmodelled import FILE, Range, Training
from planner.domain.model import ModelSpec
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import PlannerError
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.memory.bounds import plain_decoder, rest_of, units_of
from planner.program.job import Job, job_of

METHODS: Mapping[str, Training] = {"full": "full", "lora": "lora", "qlora": "lora-quantized"}
SIZES = (
    {"seq": "512", "batch": "1"},
    {"seq": "512", "batch": "2"},
    {"seq": "1024", "batch": "1"},
    {"seq": "2048", "batch": "4"},
    {"seq": "4096", "batch": "4"},
    {"seq": "8192", "batch": "1"},
    {"seq": "16384", "batch": "1"},
    {"seq": "1024", "batch": "4", "attention": "eager"},
    {"seq": "2048", "batch": "2", "attention": "flash2"},
)
"""From where weights decide to where samples do, with each kernel that the dry run has."""
Key = tuple[Family, Training, bool]


@dataclass(frozen=True)
class Compared:
    """One architecture under one training: the least and the most over :data:`SIZES`."""

    architecture: str
    low: float
    high: float


@lru_cache(maxsize=1)
def known_models() -> Mapping[str, ModelSpec]:
    """The smallest model of each architecture that has attention; of those that see the language model."""
    found: dict[str, ModelSpec] = {}
    for model in (spec_of(model_entry(each)) for each in model_ids()):
        name, text = model.decoder or model.architecture, model.text_part() if model.vision else model
        if not any(group.block.attends for group in text.groups):
            continue  # without heads there is no plain decoder of its sizes
        if name not in found or text.param_count < found[name].param_count:
            found[name] = text
    return found


def compared(name: str, model: ModelSpec, method: str, checkpointing: bool) -> Compared | None:
    """The ends of one model, over all sizes that its code can run; ``None`` where that is none."""
    ratios = [*_ratios(model, method, checkpointing)]
    if not ratios:
        return None
    return Compared(name, min(low for low, _ in ratios), max(high for _, high in ratios))


def _ratios(model: ModelSpec, method: str, checkpointing: bool) -> Iterator[tuple[float, float]]:
    plain = plain_decoder(model)
    for size in SIZES:
        flags = {**size, "method": method, "gradient_checkpointing": checkpointing}
        try:
            job = _job(model, flags)
        except PlannerError:
            continue  # a kernel that its code has not
        (low, high), (allocated, reserved) = rest_of(job), units_of(job, _job(plain, flags))
        yield float(low / allocated), float(high / reserved)


def _job(model: ModelSpec, flags: Mapping[str, object]) -> Job:
    request = from_flags({"model": model.id, "gpu": "h100-sxm", **flags})
    return job_of(resolve(request, model=model), Coefficients())


def all_compared() -> dict[Key, list[Compared]]:
    """Every architecture under every training."""
    found: dict[Key, list[Compared]] = defaultdict(list)
    for (method, training), checkpointing in product(METHODS.items(), (True, False)):
        for name, model in known_models().items():
            each = compared(name, model, method, checkpointing)
            if each is not None:
                found[family_of(model), training, checkpointing].append(each)
    return found


def range_of(key: Key, found: list[Compared]) -> Range:
    """The ends of what was found, rounded outwards."""
    family, training, checkpointing = key
    lowest, highest = min(found, key=lambda each: each.low), max(found, key=lambda each: each.high)
    return Range(
        family=family,
        training=training,
        checkpointing=checkpointing,
        low=math.floor(100 * lowest.low) / 100,
        high=math.ceil(100 * highest.high) / 100,
        lowest=lowest.architecture,
        highest=highest.architecture,
        n=len(found),
    )


def family_of(model: ModelSpec) -> Family:
    """The family of a model that a reader describes."""
    blocks = [group.block for group in model.groups]
    if any(block.mixer is not None for block in blocks):
        return "recurrent"
    return "mixture" if any(block.mlp.n_experts for block in blocks) else "dense"


def held_out(found: Mapping[Key, list[Compared]]) -> dict[Family, tuple[int, int]]:
    """Of each family: architectures and trainings within the ends of the others, and how many there are."""
    counts: dict[Family, tuple[int, int]] = {}
    for key, known in found.items():
        inside = sum(_is_inside(each, [other for other in known if other is not each]) for each in known)
        before = counts.get(key[0], (0, 0))
        counts[key[0]] = before[0] + inside, before[1] + len(known)
    return counts


def _is_inside(each: Compared, others: list[Compared]) -> bool:
    return min(o.low for o in others) <= each.low and each.high <= max(o.high for o in others)


_HEAD = """\
# What known architectures need beside weights and states, as multiples of what a plain decoder of the same
# sizes needs (planner/memory/bounds.py).  Written by `make ranges`; do not edit.
schema = 1
source = "tests/accuracy/architecture_ranges.py: the smallest model of each architecture of data/models"
"""


def as_toml(ranges: list[Range]) -> str:
    """The file."""
    parts = [_HEAD]
    for each in ranges:
        lines = [f"{name} = {_value(value)}" for name, value in each.model_dump().items()]
        parts.append("\n".join(["[[ranges]]", *lines, ""]))
    return "\n".join(parts)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def main() -> None:
    """Write the file, and print the share that is held out."""
    found = all_compared()
    ranges = [range_of(key, known) for key, known in sorted(found.items())]
    (data_dir() / FILE).write_text(as_toml(ranges), encoding="utf-8")
    for family, (inside, n) in held_out(found).items():
        print(f"{family}: {inside} of {n} within the ends of the others ({100 * inside / n:.0f} %)")
    for key, known in sorted(found.items()):
        outside = [each for each in known if not _is_inside(each, [o for o in known if o is not each])]
        print(*key, ", ".join(f"{each.architecture} {each.low:.2f} {each.high:.2f}" for each in outside))


if __name__ == "__main__":
    main()
