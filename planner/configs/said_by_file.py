"""What one config file says about a job, in the words of our fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isqrt
from pathlib import Path
from typing import Any

from planner.configs.shared.keys import Keys
from planner.domain.model import ModelSpec
from planner.domain.origin import tool_default
from planner.domain.recipes.recipe import OFFLOADS, Padding
from planner.domain.recipes.sharding import NONE, Sharding, sharding_named
from planner.errors import NotModelledError, UsageError

IMAGES_UNSAID = "the data say how many images a sample has: one is assumed"


@dataclass(frozen=True, slots=True)
class Said:
    """The value of a field.  ``origin`` is ``file:key`` or ``default of <tool>``;
    ``note`` says how it was read.
    """

    value: Any
    origin: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Remark:
    """A key that is known but not counted as it stands, and what is counted instead."""

    origin: str
    text: str


@dataclass(frozen=True, slots=True)
class Alone:
    """A key with which the tool trains on ``count`` GPUs only, and what it says on others.

    ``otherwise``: why these are not modelled either; empty where they are.  ``sees``: so many GPUs of its
    machine are all that the process sees, and more are no error: nothing is ``refused`` then.  ``unread``:
    why several that it sees are not modelled.
    """

    origin: str
    refused: str = ""
    otherwise: str = ""
    sees: int = 0
    unread: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Shards:
    """Over how many GPUs a file has FSDP2 divide.  ``copies``: GPUs beyond these hold copies; else the tool
    stops at them.
    """

    count: int
    origin: str
    copies: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """Models at which the tool stops beside a key: which, and the sentence that says so.

    ``by_tool``: false where the tool goes on, and what it does there is not modelled.
    """

    applies: Callable[[ModelSpec], bool]
    sentence: str
    by_tool: bool = True


@dataclass(slots=True)
class Told:
    """What a file says of a job beside the values of our fields.

    ``tool``: the program that it is for, with the version whose defaults are taken; ``tool_name``: its name
    for ``--tool``.  ``remarks``: keys that are not counted as they stand.  ``ignored``: unknown keys, as
    ``file:key``.
    ``needs``: fields that the file leaves open and no default settles, each with the sentence that asks for
    it.  ``either``: values of a field that a script may have, the likeliest first, with that sentence.
    ``less``: a value that a script may have, which needs less.
    ``total_batch``: micro-batch x accumulation x GPUs, the samples of one step, with the place that gives it;
    a factor that the file leaves open follows from it.  ``least_batch``: samples that a step has at least,
    where the accumulation follows from it.  ``generated``: sequences that all GPUs generate at once.
    ``launch``: the launch file that was found and taken.  ``candidates``: launch files that could be meant,
    where none was.
    ``several``: the sharding where the job has several GPUs and nothing says one, with the place that settles
    it.  ``one_batch``: the precision where all GPUs share a batch.  ``alone``: a key that the tool takes on
    so many GPUs only.  ``shards``: over how many GPUs FSDP2 divides.
    ``most_pixels``: of an image, above which the tool makes it smaller, with sides of whole multiples.
    ``longest``: tokens of a sample, above which the tool stops, with the place that says them.
    ``in_weights_dtype``: place of what says that the dtype of the checkpoint decides the precision.
    ``served``: place of what has vLLM on GPUs of its own, and how many train beside; 0 where that is not
    said.  ``stops``: models at which there is no answer.  ``fits``: other stacks that the keys fit as well.
    """

    path: Path
    tool: str
    tool_name: str = ""
    remarks: list[Remark] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    needs: dict[str, str] = field(default_factory=dict)
    either: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    less: dict[str, tuple[str, str]] = field(default_factory=dict)
    total_batch: tuple[int, str] | None = None
    least_batch: tuple[int, str] | None = None
    generated: tuple[int, str] | None = None
    launch: Path | None = None
    candidates: tuple[Path, ...] = ()
    several: tuple[str, str] | None = None
    one_batch: tuple[str, str] | None = None
    alone: Alone | None = None
    shards: Shards | None = None
    most_pixels: tuple[int, int] | None = None
    longest: tuple[int, str] | None = None
    in_weights_dtype: str = ""
    served: tuple[str, int] = ("", 0)
    stops: list[Stop] = field(default_factory=list)
    fits: tuple[str, ...] = ()


@dataclass(slots=True)
class Reading(Told):
    """What was read so far: the values of our fields, and what readers tell each other.

    ``switches``: those of the stack that the file sets, with their places.  ``script``: what a command runs,
    where the file stands for one.  ``one_process``: place of a launch that starts one process without a rank,
    and how many GPUs it sees; 0 where that is not said.  ``dtype_left_open``: place in a file of DeepSpeed
    where the dtype of weights that ZeRO-3 divides is left to the trainer.  ``cut_samples``: the padding with
    which samples are only cut at ``seq``; ``packed`` where they are counted as full rows and are none.
    """

    said: dict[str, Said] = field(default_factory=dict)
    switches: dict[str, tuple[str, str]] = field(default_factory=dict)
    script: str = ""
    one_process: tuple[str, int] = ("", 0)
    dtype_left_open: str = ""
    cut_samples: Padding = "longest"

    def say(self, name: str, value: Any, origin: str, note: str = "") -> None:
        """Enter what a key says about a field.

        Raises:
            UsageError: another key has said something else about it.
            NotModelledError: another key offloads to NVMe beside activations.
        """
        before = self.said.get(name)
        if before is not None and before.value != value:
            if name == "offload" and "activations" in (value, before.value):
                states = value if before.value == "activations" else before.value
                both = f"{states}+activations"
                if both in OFFLOADS:
                    self.said[name] = Said(both, before.origin, f"{states} beside activations: {origin}")
                    return
                raise NotModelledError(
                    f"{origin}: offloading activations and weights or optimizer states ({before.origin}) at "
                    "once is not modelled"
                )
            raise UsageError(f"{origin}: says {name} {value}, but {before.origin} says {before.value}")
        if before is None:
            self.said[name] = Said(value, origin, note)

    def take(self, keys: Keys, table: Mapping[str, str]) -> None:
        """Enter the keys of ``table`` (their name -> our field) that are given, as they stand."""
        for name, target in table.items():
            value = keys.get(name)
            if value is not None:
                self.say(target, value, keys.where(name))

    def take_stack(self, stack: str, tool: str, origin: str, text: str) -> None:
        """Enter another stack than the tool's newest, because a key tells the age of the file,
        as ``text`` says; ``tool``: the tool with the versions that the stack is of, whose defaults are taken
        from here on.
        """
        self.tool = tool
        self.said["stack"] = Said(stack, origin, text)
        self.remark(
            origin,
            f"{text}, so the file is read as one of {stack}; --stack NAME reads it as another",
        )

    def default(self, name: str, value: Any, place: str) -> None:
        """Enter what the tool does where no key says anything;
        ``place`` is the file and line that says so.
        """
        if name not in self.said:
            self.said[name] = Said(value, tool_default(self.tool), place)

    def limit_images(self, pixels: int, place: str, multiple: int = 1) -> None:
        """Enter that larger images are made as small as this, in pixels, with sides of whole ``multiple``;
        images as large as they are left are assumed.
        """
        self.most_pixels = min(filter(None, (self.most_pixels, (pixels, multiple))))
        side = isqrt(pixels)
        self.default("image_size", f"{side}x{side}", f"{place}; larger images are made as small as this")

    def remark(self, origin: str, text: str) -> None:
        """Enter a key that is known but not counted as it stands."""
        self.remarks.append(Remark(origin, text))

    def switch(self, name: str, value: object, origin: str) -> None:
        """Enter a switch of the stack that the file sets:
        what it means for the stack's own values is looked up later.
        """
        text = str(value).lower() if isinstance(value, bool) else str(value)
        self.switches.setdefault(name, (text, origin))

    def value(self, name: str) -> Any:
        """What was given about a field so far, ``None`` if nothing."""
        said = self.said.get(name)
        return None if said is None else said.value

    @property
    def sharding(self) -> Sharding:
        """How the file spreads state, as far as it was read: a process alone where it says nothing."""
        return sharding_named(self.value("sharding") or NONE.name)

    def say_switches(self) -> None:
        """Enter all switches as the one field that they are."""
        if self.switches:
            pairs = tuple(f"{name}={value}" for name, (value, _) in self.switches.items())
            note = "; ".join(f"{name}: {origin}" for name, (_, origin) in self.switches.items())
            self.say("switches", pairs, next(iter(self.switches.values()))[1], note)

    def finish(self, keys: Keys) -> None:
        """Enter the keys of a file that nobody read.

        Raises:
            InputFileError: nobody read any, so the file is another program's and says nothing about this job.
            NotModelledError: one of them may change memory.
        """
        keys.refuse_foreign()
        keys.refuse_unknown()
        self.ignored += [f"{keys.path}:{name}" for name in keys.left_over()]
        for place, known in keys.slips():
            self.remark(place, f"is {known} meant?")
