"""A config file of any kind -> what was given about a job, with what was not taken over of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType

from planner.configs.launchers.fsdp_keys import Beside
from planner.configs.read import TOOL_NAMES, read_config
from planner.configs.said_by_file import Alone, Reading, Remark, Shards, Stop, Told
from planner.configs.tools.torchtitan import is_torchtitan
from planner.configs.yaml_or_json import read_document
from planner.domain.origin import tool_default
from planner.domain.recipes.sharding import FSDP, HSDP
from planner.errors import (
    REFUSED_BY_TOOL,
    InputFileError,
    NotModelledError,
    UnknownNameError,
    UsageError,
    show,
)
from planner.intake.given.fields import REQUEST_FIELDS, missing_fields, split_count
from planner.intake.given.request import Given, ScenarioRequest, from_toml, merge
from planner.intake.images import parse_size
from planner.intake.model_parallel import degrees

OWN_TOOL = "plan"


@dataclass(slots=True)
class ConfigFile(Told):
    """What a file says, with the values of our fields as what was given."""

    request: ScenarioRequest = field(kw_only=True)

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks and ignored keys, a sentence each."""
        unknown = (f"{origin}: unknown key, ignored" for origin in self.ignored)
        return (*unknown, *(f"{remark.origin}: {remark.text}" for remark in self.remarks))


def read_config_file(path: str | Path, tool: str | None = None, beside: Beside | None = None) -> ConfigFile:
    """What a config file says: our own TOML,
    or YAML or JSON of a tool that is told by its keys or named by ``tool``.

    Raises:
        InputFileError: the file cannot be read, no tool can be told, or a value cannot be used;
        names file and key.
        UnknownNameError: no such tool.
        NotModelledError: the file asks for something that no formula covers.
    """
    file = Path(path)
    if "://" in str(path):
        raise InputFileError(show(str(path)), "an address, not a file: save what it shows, and name that")
    if tool is not None and tool not in TOOL_NAMES:
        raise UnknownNameError("tool", tool[:60], TOOL_NAMES, hint=f"allowed: {', '.join(TOOL_NAMES)}")
    if tool == OWN_TOOL or (tool is None and file.suffix == ".toml" and not _is_torchtitan(file)):
        return ConfigFile(file, OWN_TOOL, OWN_TOOL, request=from_toml(file))
    config = config_of(read_config(file, tool, beside))
    for name in missing_fields(config.request.is_given, ("model", "recipe")):
        sentence = f"{file}: does not say the {name}: say {REQUEST_FIELDS[name].flag}"
        config.needs.setdefault(name, sentence)
    return config


def _is_torchtitan(file: Path) -> bool:
    """Whether a TOML file is torchtitan's, and not one of plan's own;
    whoever reads one that cannot be read says so.
    """
    try:
        return is_torchtitan(read_document(file))
    except InputFileError:
        return False


def config_of(reading: Reading) -> ConfigFile:
    """What was read, in the types of our fields.

    Raises:
        InputFileError: a value that cannot be used; names its place.
    """
    told = {each.name: getattr(reading, each.name) for each in fields(Told)}
    return ConfigFile(**told, request=ScenarioRequest(_parsed(reading)))


def with_flags(config: ConfigFile, flags: ScenarioRequest) -> ScenarioRequest:
    """What file and flags say together; flags win.

    Raises:
        UsageError: something that the file leaves open is not given, its batch over all GPUs is another than
            the job's, or its tool refuses several GPUs or so long samples.
        NotModelledError: a key that no formula covers on one GPU either.
    """
    request = _with_both_switches(merge(config.request, flags), config.request)
    if config.alone is not None:
        request = _alone(config.alone, request, divided=flags.is_given("sharding"))
    request = _beside_server(request, *config.served)
    for name, sentence in config.needs.items():
        # A card says how many there are, too: X:n.
        counted = name == "gpus" and split_count(request.get("gpu") or "")[1] is not None
        if request.get(name) is None and not counted:
            raise UsageError(sentence)
    if config.longest is not None:
        _refuse_longer(request, *config.longest)
    if config.several is not None and request.get("sharding") is None and _batches(request) > 1:
        kind, place = config.several
        given = Given(REQUEST_FIELDS["sharding"].parse(kind), tool_default(config.tool), place)
        request = merge(ScenarioRequest({"sharding": given}), request)
    if config.shards is not None and not (flags.is_given("sharding") or flags.is_given("replicas")):
        request = _with_copies(request, config.shards)
    shares = _gpus(request) > 1 and _batches(request) == 1
    if config.one_batch is not None and not flags.is_given("precision") and shares:
        request = merge(request, ScenarioRequest({"precision": Given(*config.one_batch)}))
    request = _with_micro_batches(config, request)
    _refuse_models(config.stops, request)
    if config.in_weights_dtype:
        request = _in_weights_dtype(request, config.in_weights_dtype, config.tool)
    if config.most_pixels is not None:
        request = _with_smaller_images(request, *config.most_pixels)
    return request if config.total_batch is None else _with_total(request, config.total_batch)


def _refuse_longer(request: ScenarioRequest, longest_tokens: int, place: str) -> None:
    """Raises: UsageError where samples are longer than the tool takes."""
    given = request.values.get("seq")
    if given is not None and given.value > longest_tokens:
        raise UsageError(
            f"{place} stops with an error at a sample above {longest_tokens} tokens, and seq is "
            f"{given.value} ({given.origin}): say --seq {longest_tokens} or less [{REFUSED_BY_TOOL}]"
        )


def _refuse_models(stops: Sequence[Stop], request: ScenarioRequest) -> None:
    """Raises: UsageError where the tool stops at this model beside a key of the file, and NotModelledError
    where what it does there is not modelled.
    """
    if not stops or request.get("model") is None:
        return
    from planner.catalog.models import load_model

    spec = load_model(request.get("model")).spec
    for stop in stops:
        if not stop.applies(spec):
            continue
        if not stop.by_tool:
            raise NotModelledError(stop.sentence)
        raise UsageError(f"{stop.sentence} [{REFUSED_BY_TOOL}]")


def _in_weights_dtype(request: ScenarioRequest, place: str, tool: str) -> ScenarioRequest:
    """``request`` with the dtype of the checkpoint as precision, where nothing says one."""
    if request.get("precision") is not None or request.get("model") is None:
        return request
    from planner.catalog.models import load_model

    spec = load_model(request.get("model")).spec
    if request.get("quantization") not in (None, "none") and spec.checkpoint_dtype != "bf16":
        raise UsageError(
            f"{place}, and the checkpoint is in {spec.checkpoint_dtype}: say --precision, in which a "
            "quantised base is computed"
        )
    note = f"{place}: the dtype of the checkpoint"
    given = Given(spec.checkpoint_dtype, tool_default(tool), note)
    return merge(ScenarioRequest({"precision": given}), request)


def overruled(config: ConfigFile, request: ScenarioRequest) -> tuple[Remark, ...]:
    """What is counted otherwise than said: how many GPUs a node has, in a flag or in the launch that the file
    goes with.
    """
    seen = request.values.get("gpus")
    elsewhere = (config.served[0], config.alone.origin if config.alone else "")
    if seen is not None and seen.note and seen.origin in elsewhere:
        return (Remark(seen.origin, seen.note),)
    said, nodes = config.request.values.get("gpus"), request.get("nodes") or 1
    counted = _gpus(request) // nodes
    # One process that spreads its layers has as many GPUs as it sees.
    if said is None or said.value == counted or request.get("device_map") is not None:
        return ()
    return (Remark(said.origin, f"{said.value} GPUs in each node, and {counted} are counted: the flag wins"),)


def _with_micro_batches(config: ConfigFile, request: ScenarioRequest) -> ScenarioRequest:
    """``request`` with the numbers of them that follow from the file and the GPUs."""
    if config.least_batch is not None:
        request = _with_least(request, *config.least_batch)
    return request if config.generated is None else _with_generated(request, *config.generated)


def _with_least(request: ScenarioRequest, samples: int, where: str) -> ScenarioRequest:
    """``request`` with the accumulation that gives a step ``samples`` at least, unless one is said."""
    micro, gpus = request.get("batch"), _batches(request)
    if micro is None or request.get("grad_accum") is not None:
        return request
    accum = -(-samples // (micro * gpus))
    note = f"{micro} x {accum} x {gpus} GPUs is {samples} samples, or more"
    return merge(ScenarioRequest({"grad_accum": Given(accum, tool_default(where), note)}), request)


def _with_generated(request: ScenarioRequest, sequences: int, where: str) -> ScenarioRequest:
    """``request`` with the micro-batches of a generation of so many sequences on all GPUs, unless said."""
    micro, gpus = request.get("batch"), _batches(request)
    if micro is None or request.get("generation_steps") is not None:
        return request
    steps, rest = divmod(sequences, micro * gpus)
    if rest or not steps:
        raise UsageError(
            f"{where}: {sequences} is no multiple of batch {micro} x {gpus} GPUs: say --batch "
            f"[{REFUSED_BY_TOOL}]"
        )
    note = f"{sequences} sequences of {gpus} GPUs with {micro} each"
    return merge(ScenarioRequest({"generation_steps": Given(steps, where, note)}), request)


def _with_smaller_images(request: ScenarioRequest, pixels: int, multiple: int) -> ScenarioRequest:
    """``request`` with images of at most so many pixels, and then of sides that are whole multiples.

    Source: llamafactory 0.9.5 data/mm_plugin.py _preprocess_image; transformers 5.23 smart_resize.
    """
    given = request.values.get("image_size")
    if given is None:
        return request
    width, height = parse_size(given.value)
    factor = math.sqrt(pixels / (width * height))
    if factor >= 1:
        return request
    width, height = (max(int(side * factor) // multiple, 1) * multiple for side in (width, height))
    note = f"{given.value}, made smaller: at most {pixels:,} pixels"
    return merge(request, ScenarioRequest({"image_size": Given(f"{width}x{height}", given.origin, note)}))


def _alone(alone: Alone, request: ScenarioRequest, *, divided: bool) -> ScenarioRequest:
    """``request`` on the GPUs that the process sees, whatever the machine has; ``divided``: a flag says how
    several share the model, so that another program runs.
    """
    gpus = _gpus(request)
    if alone.unread and min(gpus, alone.sees or gpus) > 1 and not divided:
        raise NotModelledError(f"{alone.origin}: {alone.unread}; or say --gpu X:1")
    if alone.sees and gpus > alone.sees and not divided:
        note = f"uses {alone.sees} of the {gpus} GPUs, whatever is in the machine"
        return _on(request, alone.sees, alone.origin, note)
    if gpus != alone.count and alone.refused and not alone.sees:
        raise UsageError(f"{alone.origin}: {alone.refused}; say --gpu X:{alone.count} [{REFUSED_BY_TOOL}]")
    if alone.otherwise:
        raise NotModelledError(alone.otherwise)
    return request


def _with_copies(request: ScenarioRequest, shards: Shards) -> ScenarioRequest:
    """``request`` with the copies of what so many GPUs divide, where the job has more of them.

    Source: axolotl 0.19.0 utils/distributed.py _get_parallel_config_kwargs; torchtitan e347b1e5e
    distributed/parallel_dims.py _validate; accelerate 1.15.0 parallelism_config.py _validate_accelerator.
    """
    gpus = _batches(request)
    if gpus == 1 and request.get("gpu") is None:
        return request
    copies, rest = divmod(gpus, shards.count * (request.get("replicas") or 1))
    if rest or not copies or (copies > 1 and not shards.copies):
        every = shards.count * (request.get("replicas") or 1) * degrees(request).gpus
        more = ", or a multiple" if shards.copies else ""
        raise UsageError(
            f"{shards.origin}: the degrees ask for {every} GPUs{more}, and the job has {_gpus(request)}; "
            f"say --gpu X:{every} [{REFUSED_BY_TOOL}]"
        )
    if copies == 1:
        return request
    if request.get("sharding") != FSDP.name:
        raise NotModelledError(
            f"{shards.origin}: copies beside sharding {request.get('sharding')} are not modelled; FSDP2 is"
        )
    note = f"{copies} copies of what {shards.count} GPUs divide"
    found = {"sharding": HSDP.name, "replicas": copies}
    given = {name: Given(value, shards.origin, note) for name, value in found.items()}
    return merge(request, ScenarioRequest(given))


def _on(request: ScenarioRequest, gpus: int, place: str, note: str) -> ScenarioRequest:
    """``request`` on so many GPUs of one machine, whatever it says."""
    name, _ = split_count(request.get("gpu") or "")
    seen = {each: Given(count, place, note) for each, count in (("gpus", gpus), ("nodes", 1))}
    card = {"gpu": replace(request.values["gpu"], value=name)} if name else {}
    return merge(request, ScenarioRequest(seen | card))


def _beside_server(request: ScenarioRequest, place: str, trained: int) -> ScenarioRequest:
    """``request`` on the GPUs of a machine that train beside vLLM: ``trained`` of them, or all but one where
    only their batch holds whole groups of completions.
    """
    gpus, groups = _gpus(request), request.get("generations")
    if not place or (request.get("nodes") or 1) > 1:
        return request
    rows = (request.get("batch") or 0) * (request.get("generation_steps") or request.get("grad_accum") or 1)
    if not trained and groups and rows * gpus % groups and not rows * (gpus - 1) % groups:
        trained = gpus - 1
    if not 0 < trained < gpus:
        return request
    return _on(request, trained, place, f"{trained} of the {gpus} GPUs train, and vLLM has one of its own")


def _with_both_switches(request: ScenarioRequest, file: ScenarioRequest) -> ScenarioRequest:
    """``request`` with those switches of the file that the flags do not name."""
    given, before = request.values.get("switches"), file.values.get("switches")
    if given is None or before is None or given is before:
        return request
    named = {text.partition("=")[0].strip() for text in given.value}
    kept = tuple(text for text in before.value if text.partition("=")[0] not in named)
    return merge(
        request, ScenarioRequest({"switches": Given((*kept, *given.value), given.origin, before.note)})
    )


def _parsed(reading: Reading) -> Mapping[str, Given]:
    values = {}
    for name, said in reading.said.items():
        value = _beside(reading.path, said.value) if name == "model" else said.value
        try:
            cuts = reading.cut_samples if name == "seq" else None
            values[name] = Given(REQUEST_FIELDS[name].parse(value), said.origin, said.note, cuts)
        except UsageError as error:
            raise InputFileError(said.origin, str(error)) from None
    return MappingProxyType(values)


def _beside(config: Path, model: object) -> object:
    """A model's folder or ``config.json`` beside the config, where the name is the path of one;
    else the name.
    """
    if not isinstance(model, str) or not model.strip():
        return model
    try:
        path = config.parent / Path(model).expanduser()
        found = (path / "config.json").is_file() or (path.is_file() and path.suffix == ".json")
    except (OSError, ValueError, RuntimeError):
        return model
    return str(path.resolve()) if found else model


def _with_total(request: ScenarioRequest, total: tuple[int, str]) -> ScenarioRequest:
    """``request`` with what the batch over all GPUs leaves open of micro-batch and accumulation,
    or checked against it.

    GPUs that share a batch count as one.  As deepspeed 0.19.8 runtime/config.py:590-656 does it: what is left
    out is divided without a remainder, accumulation is 1 where neither is given, and the product must be the
    batch.
    """
    samples, where = total
    gpus = _batches(request)
    micro, accum = request.get("batch"), request.get("grad_accum")
    if micro is None:
        accum = accum or 1
        micro = samples // gpus // accum
    elif accum is None:
        accum = samples // micro // gpus
    if min(micro, accum) < 1 or micro * accum * gpus != samples:
        raise UsageError(
            f"{where} is {samples}, but micro-batch {micro} x accumulation {accum} x {gpus} GPUs is "
            f"{micro * accum * gpus}, which ends the job: say how many GPUs with --gpu X:n "
            f"[{REFUSED_BY_TOOL}]"
        )
    note = f"{samples} samples = {micro} x {accum} x {gpus} GPUs"
    found = {"batch": Given(micro, where, note), "grad_accum": Given(accum, where, note)}
    return merge(ScenarioRequest(found), request)


def _batches(request: ScenarioRequest) -> int:
    """Micro-batches at a time: GPUs that share one count as one, and so do all of one process."""
    return 1 if request.get("device_map") else max(_gpus(request) // degrees(request).gpus, 1)


def _gpus(request: ScenarioRequest) -> int:
    """GPUs of the whole job, as flags or the file say them."""
    _, counted = split_count(request.get("gpu") or "")
    return (counted or request.get("gpus") or 1) * (request.get("nodes") or 1)
