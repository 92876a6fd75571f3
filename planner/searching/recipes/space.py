"""What a search varies: choices that somebody gave,
and what nobody gave over a small set that is the same for everybody.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from planner.domain.origin import is_tool_default
from planner.domain.recipes.recipe import Offload
from planner.domain.recipes.sharding import FSDP, HSDP, ZERO2, ZERO3, Sharding, sharding_named
from planner.domain.scenario import Scenario
from planner.errors import UsageError, show
from planner.intake.given.config_file import ConfigFile, with_flags
from planner.intake.given.fields import REQUEST_FIELDS
from planner.intake.given.request import ScenarioRequest, from_flags, merge
from planner.intake.model_parallel import FIELDS
from planner.intake.resolve import LookedUp, complete
from planner.intake.supported import cannot_step
from planner.searching.common_stacks import COMMON_STACKS, runs_sharding
from planner.searching.moves import moves
from planner.searching.places import COMMON_CARDS
from planner.words import words

# Values of flags as they are typed; ``True`` and ``False`` for a switch and its opposite.
TypedFlags = Mapping[str, str | bool]

METHODS = ("full", "lora", "qlora")
"""What is tried where no method is given.  They train different things, so their recipes are listed apart."""
MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)
"""What is tried where no micro-batch is given, up to the first that does not fit."""
ASSUMED_SEQ_TOKENS = 2048
"""Length where none is given, or the model's own maximum where that is shorter.
Printed with the answer and in every command.
"""
_VARIED = frozenset(
    {"gradient_checkpointing", "attention", "loss", "optimizer", "sharding", "offload", "batch"}
)
CHOICES_OF_PLACE = ("gpu", "price", "gpus", "nodes", "stack")
_CHOICES_OF_RECIPE = words(
    """
    method quantization quant_storage precision load_dtype adapter_dtype seq padding lora_rank optimizer
    attention loss checkpoint_every checkpoint_policy sharding offload
    """
)
CHOICES = (*CHOICES_OF_PLACE, *_CHOICES_OF_RECIPE, "batch", "grad_accum")
"""Flags that take several values with commas between them."""
ANY = "any"
"""Value of the flags for the stack and the card that asks for each of the common ones."""
_OPTIMIZERS_OF_FULL = ("adamw_8bit", "paged_adamw_8bit")


@dataclass(frozen=True, slots=True)
class Space:
    """What was given: ``fixed`` values, ``choices`` of several,
    and below both a ``config`` that was read from ``config_file``.

    How a file's tool runs the training where the file is silent is not given by anybody: it may be varied.
    ``global_batch``: samples of one optimizer step on all GPUs, kept by accumulation (``None``: not given).
    ``beyond_context``: whether lengths may be solved for that are above what the model was made for.
    """

    fixed: TypedFlags
    choices: Mapping[str, tuple[str, ...]]
    config: ConfigFile = field(default_factory=lambda: ConfigFile(Path(), "", request=ScenarioRequest({})))
    global_batch: int | None = None
    config_file: str | None = None
    beyond_context: bool = False

    def is_given(self, name: str) -> bool:
        """Whether anybody says something about this field."""
        return name in self.fixed or name in self.choices or self.of_file(name) is not None

    @property
    def global_batch_text(self) -> str:
        """The global batch as it was given: by its flag, or by the file."""
        total = self.config.total_batch
        said_by = total[1] if total is not None and total[0] == self.global_batch else "--global-batch"
        return f"{said_by} {self.global_batch}"

    def of_file(self, name: str) -> Any:
        """What the file says of a field; ``None`` where it says nothing."""
        given = self.config.request.values.get(name)
        by_itself = given is not None and is_tool_default(given.origin) and name in _VARIED
        return None if given is None or by_itself else given.value

    def values_of(self, name: str) -> tuple[int, ...]:
        """Whole numbers that were given for a field, smallest first; none where nobody says any."""
        typed = self.choices.get(name) or ((self.fixed[name],) if name in self.fixed else ())
        parsed = {REQUEST_FIELDS[name].parse(value) for value in typed} or {self.of_file(name)} - {None}
        return tuple(sorted(parsed))

    def outline(self, flags: TypedFlags) -> ScenarioRequest:
        """The values that all recipes with these flags share; their sizes are still open."""
        return merge(self.config.request, from_flags(flags))

    def request(self, flags: TypedFlags) -> ScenarioRequest:
        """The request of one recipe, as ``plan`` makes it of the file and these flags."""
        return with_flags(self.config, from_flags(flags))

    def places(self) -> Iterator[dict[str, str | bool]]:
        """Everything that is fixed, with each combination of the choices outside the recipe;
        prices go with their cards.
        """
        names = [name for name in CHOICES_OF_PLACE if name in self.choices]
        if "price" in names:
            cards, prices = self.choices.get("gpu", ()), self.choices["price"]
            if len(cards) != len(prices):
                choices = f"{len(cards)} choices" if len(cards) > 1 else "1 choice"
                raise UsageError(
                    f"--price gives {len(prices)} prices for {choices} of --gpu: give one, "
                    "or one for each choice"
                )
            names.remove("price")
        for combination in product(*(self.choices[name] for name in names)):
            place = dict(self.fixed) | dict(zip(names, combination, strict=True))
            if "price" in self.choices:
                place["price"] = self.choices["price"][self.choices["gpu"].index(str(place["gpu"]))]
            yield place


@dataclass(frozen=True, slots=True)
class Option:
    """One combination of all but the sizes: its flags, what they name,
    and how many settings differ from the stack's own.
    """

    flags: TypedFlags
    found: LookedUp
    n_changes: int


def read_choices(flags: Mapping[str, object]) -> tuple[dict[str, str | bool], dict[str, tuple[str, ...]]]:
    """Fixed values and choices of flags as they were typed; ``--stack any`` are the common stacks,
    ``--gpu any`` the common cards, ``--gpu any:8`` eight of each.

    Raises:
        UsageError: nothing between two commas.
    """
    fixed: dict[str, str | bool] = {}
    choices: dict[str, tuple[str, ...]] = {}
    for name, value in flags.items():
        if name == "stack" and value == ANY:
            choices[name] = COMMON_STACKS
        elif name == "gpu" and isinstance(value, str) and value.partition(":")[0] == ANY:
            choices[name] = tuple(f"{card}{value.removeprefix(ANY)}" for card in COMMON_CARDS)
        elif isinstance(value, str) and "," in value and name in CHOICES:
            parts = tuple(part.strip() for part in value.split(","))
            # Two cards may cost the same.
            parts = parts if name == "price" else tuple(dict.fromkeys(parts))
            if "" in parts:
                raise UsageError(
                    f"{REQUEST_FIELDS[name].flag} has an empty choice between commas: '{show(value)}'"
                )
            if len(parts) > 1:
                choices[name] = parts
            else:
                fixed[name] = parts[0]
        elif isinstance(value, str | bool):
            fixed[name] = value
    return fixed, choices


@dataclass(frozen=True, slots=True)
class OptionGroup:
    """Options that train the same in one place.

    ``offloading`` are those that move state to the host without being asked to: they need RAM and a link of
    which little is known, so they are tried only where none of ``first`` fits.
    """

    first: tuple[Option, ...]
    offloading: tuple[Option, ...]


def options_over(space: Space, place: TypedFlags, found: LookedUp) -> Iterator[OptionGroup]:
    """Every combination of recipe settings over one place: what was given, with each choice,
    times what nobody gave.
    """
    names = [name for name in _CHOICES_OF_RECIPE if name in space.choices]
    lists = [space.choices[name] for name in names]
    if not space.is_given("method"):
        # Over a packed checkpoint qlora is what lora is.
        tried = METHODS if found.model.stored is None else METHODS[:2]
        names, lists = ["method", *names], [tried, *lists]
    for combination in product(*lists):
        flags = {**place, **dict(zip(names, combination, strict=True))}
        if not space.is_given("seq"):
            flags.setdefault(
                "seq", str(min(ASSUMED_SEQ_TOKENS, found.model.max_position_tokens or ASSUMED_SEQ_TOKENS))
            )
        # What is refused here may be mended by an overlay (offload needs a sharding);
        # the rules are asked again for each recipe.
        base = complete(space.outline(flags), found, force=True)
        overlays = list(_unsaid(space, base))
        options = [Option({**flags, **each}, found, len(each)) for each in overlays]
        offloads = ["offload" in each for each in overlays]
        yield OptionGroup(
            tuple(option for option, moves in zip(options, offloads, strict=True) if not moves),
            tuple(option for option, moves in zip(options, offloads, strict=True) if moves),
        )


def _unsaid(space: Space, base: Scenario) -> Iterator[dict[str, str | bool]]:
    """Combinations of settings that nobody gave; each starts with the stack's own."""
    axes = [
        _shardings(space, base),
        *(_axis(space, base, name) for name in ("gradient_checkpointing", "attention", "loss")),
    ]
    axes.append(_axis(space, base, "optimizer"))
    for combination in product(*axes):
        overlay = {name: value for part in combination for name, value in part.items()}
        # bitsandbytes steps its optimizers on the GPU only, and no DTensors.
        optimizer: Any = overlay.get("optimizer", "adamw_torch")
        sharding = sharding_named(str(overlay.get("sharding", base.recipe.sharding)))
        if not ("optimizer" in overlay and ("offload" in overlay or cannot_step(optimizer, sharding))):
            yield overlay


def _axis(space: Space, base: Scenario, name: str) -> list[dict[str, str | bool]]:
    if space.is_given(name):
        return [{}]
    recipe = base.recipe
    others: list[str | bool] = []
    if name == "gradient_checkpointing":
        others = [not recipe.gradient_checkpointing]
    elif name == "optimizer":
        others = [*_OPTIMIZERS_OF_FULL] if recipe.method == "full" and base.hardware.gpu.is_cuda else []
    elif name == "loss" or recipe.attention == "eager" or base.stack.masks_padding(recipe.batch):
        # Without a mask torch's own kernel is FlashAttention 2 already.
        others = [str(move.flags[name]) for move in moves(base) if move.topic == name]
    return [{}, *({name: other} for other in others if other != getattr(recipe, name))]


def _shardings(space: Space, base: Scenario) -> list[dict[str, str | bool]]:
    """Sharding and offload together, because most pairs exclude each other."""
    several, recipe = base.hardware.world_size > 1, base.recipe
    if space.is_given("sharding"):
        stages = [recipe.sharding]
    else:
        wide = [HSDP] if base.hardware.nodes > 1 else []
        stages = [recipe.sharding, ZERO2, ZERO3, *([FSDP, *wide] if several else [])]
    pairs: list[dict[str, str | bool]] = []
    for stage in (each for each in stages if each == recipe.sharding or runs_sharding(base.stack.id, each)):
        # An engine divides nothing on one GPU: there it is only for what it offloads.
        only_offloads = stage != recipe.sharding and not several
        needs_engine = recipe.offloads_optimizer or recipe.offloads_params
        offloads: tuple[Offload, ...] = () if only_offloads and not needs_engine else (recipe.offload,)
        if not space.is_given("offload"):
            offloads = (*offloads, *_offloads(space, base, stage))
        for offload in offloads:
            pair: dict[str, str | bool] = {} if stage == recipe.sharding else {"sharding": stage.name}
            pair |= {} if offload == recipe.offload else {"offload": offload}
            pairs.append(pair | _storage(space, base, stage))
    return pairs


def _offloads(space: Space, base: Scenario, stage: Sharding) -> tuple[Offload, ...]:
    """What a stage can offload; states of adapters are too small for it, unless the stage was asked for."""
    if stage.is_zero12:
        return ("optimizer",) if base.recipe.method == "full" or space.is_given("sharding") else ()
    return ("optimizer+params",) if stage.divides_weights else ()


def _storage(space: Space, base: Scenario, stage: Sharding) -> dict[str, str | bool]:
    """4-bit bytes can be divided only as elements of a float dtype; PEFT advises that of the compute."""
    numerics = base.recipe.numerics
    if (
        not stage.gathers_weights
        or numerics.quantization not in ("nf4", "fp4")
        or space.is_given("quant_storage")
    ):
        return {}
    return {"quant_storage": numerics.compute_dtype}


def sizes(space: Space, n_gpus: int) -> tuple[tuple[dict[str, str | bool], ...], ...]:
    """Micro-batch and accumulation to try, in runs of growing micro-batch;
    none where the global batch cannot be divided so.

    GPUs that share a batch count as one.
    """
    batches, accums = space.values_of("batch") or MICRO_BATCHES, space.values_of("grad_accum")
    if space.global_batch is None:
        runs = [[(batch, accum) for batch in batches] for accum in accums or (None,)]
        return tuple(tuple(_size(batch, accum) for batch, accum in run) for run in runs)
    shared = (space.values_of(name) for name in FIELDS)
    per_gpu, rest = divmod(
        space.global_batch, max(n_gpus // prod(values[0] for values in shared if values), 1)
    )
    if rest:
        return ()
    possible = batches if space.is_given("batch") else _divisors(per_gpu)
    fitting = [(batch, per_gpu // batch) for batch in possible if per_gpu % batch == 0]
    return (tuple(_size(batch, accum) for batch, accum in fitting if not accums or accum in accums),)


@cache
def _divisors(samples: int) -> tuple[int, ...]:
    """Micro-batches that divide so many samples of one GPU."""
    most = int(REQUEST_FIELDS["batch"].high or 1)
    return tuple(batch for batch in range(1, min(samples, most) + 1) if samples % batch == 0)


def _size(batch: int, accum: int | None) -> dict[str, str | bool]:
    accumulation: dict[str, str | bool] = {} if accum is None else {"grad_accum": str(accum)}
    return {"batch": str(batch), **accumulation}
