"""Config files -> the answer of each, the same for ``plan check`` and for Python."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from planner.api.answering import How, answer_request
from planner.api.open_length import answer_at_any_length
from planner.configs.launchers.fsdp_keys import Beside
from planner.domain.scenario import Scenario
from planner.intake.given.config_file import ConfigFile, overruled, with_flags
from planner.intake.given.fields import REQUEST_FIELDS, missing_fields
from planner.intake.given.request import TRIED, Given, ScenarioRequest, asked_card, merge, require
from planner.intake.given.request_field import PARTS
from planner.report.check.checked import Checked

_EXAMPLES = {"model": "7b", "method": "qlora", "gpu": "4090", "seq": "1024"}
"""Of fields that have no default."""
_OF_IMAGES = ("images_per_sample", "image_size")


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """How to read the files and how to answer; ``deepspeed`` and ``accelerate`` stand in for files that
    configs refer to.

    ``task``: what the name of a script says that its arguments are for.  ``script``: its name; ``own``: it
    is none of a tool that is known; ``words``: what stands behind it, where its text is read.  ``flags``:
    fields of the job that flags say.  ``stack`` and ``gpu``: those that they say; ``gpus``: how many.
    ``allocator``: what a command's environment tells PyTorch's allocator.
    """

    output_format: str = "human"
    tool: str | None = None
    deepspeed: str | None = None
    accelerate: str | None = None
    calibration: str | None = None
    force: bool = False
    task: str = ""
    script: str = ""
    own: bool = False
    words: tuple[str, ...] | None = None
    flags: frozenset[str] = frozenset()
    stack: str = ""
    gpu: str = ""
    gpus: int = 0
    allocator: str = ""

    @property
    def beside(self) -> Beside:
        """The files given beside the configs."""
        deepspeed, accelerate = (Path(name) if name else None for name in (self.deepspeed, self.accelerate))
        beside = Beside(deepspeed, accelerate, task=self.task, script=self.script, own=self.own)
        said = replace(beside, words=self.words, flags=self.flags, stack=self.stack, gpu=self.gpu)
        return replace(said, gpus=self.gpus, allocator=self.allocator)


def read_for(options: CheckOptions, given: ScenarioRequest) -> CheckOptions:
    """``options`` with the stack and the card that flags say, for which a config is read."""
    gpu, gpus = asked_card(given)
    return replace(options, stack=given.get("stack") or "", gpu=gpu, gpus=gpus)


def answer_file(
    config: str, read: ConfigFile, given: ScenarioRequest, options: CheckOptions, *, why: bool = True
) -> Checked:
    """Answer what was ``read`` of one config; what was ``given`` wins over it.

    ``why``: the request that fails, where the job does not fit.

    Raises:
        LengthOpenError: the file leaves the length of samples to the data, and the length decides.
        UsageError: something that was given cannot be used, or something without a default was not given.
        NotModelledError: understood, but no formula covers it.
    """
    if leaves_length_open(read, given):
        return answer_at_any_length(
            lambda length: answer_file(config, read, with_length(given, length), options, why=why),
            read.needs["seq"],
            read.longest[0] if read.longest else None,
        )
    request = with_flags(read, given)
    missing = missing_fields(request.is_given, PARTS)
    example = "".join(f" --{name} {_EXAMPLES[name]}" for name in missing)
    require(request, *PARTS, example=f"plan check train.yaml{example}", prefix="--")
    subject = answer_request(request, How(options.calibration, options.force, advise=False, why=why))
    remarks = tuple((remark.origin, remark.text) for remark in (*read.remarks, *overruled(read, request)))
    return Checked(
        config,
        read.tool,
        subject,
        flags=flags_of(request, subject.scenario),
        remarks=remarks,
        ignored=tuple(read.ignored),
    )


def leaves_length_open(read: ConfigFile, given: ScenarioRequest) -> bool:
    """Whether nothing but the data says how long samples are."""
    return "seq" in read.needs and not given.is_given("seq") and not read.request.is_given("seq")


def with_length(given: ScenarioRequest, seq_tokens: int) -> ScenarioRequest:
    """What was ``given``, with samples of so many tokens."""
    return merge(given, ScenarioRequest({"seq": Given(seq_tokens, TRIED)}))


def flags_of(request: ScenarioRequest, scenario: Scenario | None = None) -> str:
    """What was given, as flags that can be typed after ``plan``.

    ``scenario``: what it resolved to; where the model sees nothing,
    what its tool assumes of images is left out.
    """
    words: list[str] = []
    unseen = _OF_IMAGES if scenario is not None and scenario.recipe.batch.images is None else ()
    if scenario is not None and not scenario.recipe.frozen:
        unseen = (*unseen, "freeze")
    for name, given in request.values.items():
        field, value = REQUEST_FIELDS[name], given.value
        if not field.on_command_line or name in unseen:
            continue
        if isinstance(value, bool):
            words.append(field.flag if value else f"--no-{field.flag.removeprefix('--')}")
        else:
            text = (
                f"{value}B"
                if field.kind == "size"
                else ";".join(value)
                if isinstance(value, tuple)
                else str(value)
            )
            words += [field.flag, text]
    return shlex.join(words)
