"""Sharding and offload as keys: in a DeepSpeed or Accelerate file where one has them,
else in the tool's own file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.configs.launchers.zero import AUTO
from planner.configs.writing.edits import REMOVED, Edit
from planner.configs.yaml_or_json import Document
from planner.domain.recipes.sharding import sharding_named

_DEVICES = {
    "optimizer": ("cpu", "none"),
    "params": ("none", "cpu"),
    "optimizer+params": ("cpu", "cpu"),
    "none": ("none", "none"),
}
_TRAINERS = ("llama-factory", "axolotl", "trl", "transformers")
# Files that ms-swift ships under these names, by stage and offload (4.6.0 swift/arguments/sft_args.py).
_MS_SWIFT = {
    ("zero1", "none"): "zero1",
    ("zero2", "none"): "zero2",
    ("zero2", "optimizer"): "zero2_offload",
    ("zero3", "none"): "zero3",
    ("zero3", "optimizer+params"): "zero3_offload",
}
# What a trainer hands to DeepSpeed where nothing else is given; ``auto`` is filled in by Transformers.
_NEW_DEEPSPEED = {
    "train_micro_batch_size_per_gpu": AUTO,
    "gradient_accumulation_steps": AUTO,
    "bf16": {"enabled": AUTO},
    "fp16": {"enabled": AUTO},
}
_NEW_STAGE_3 = {
    "reduce_bucket_size": AUTO,
    "stage3_prefetch_bucket_size": AUTO,
    "stage3_param_persistence_threshold": AUTO,
    "stage3_gather_16bit_weights_on_model_save": True,
}
# accelerate 1.15.0 utils/dataclasses.py FullyShardedDataParallelPlugin; the same names without fsdp_ in
# axolotl 0.19.0 utils/schemas/fsdp.py.
_NEW_FSDP = {
    "reshard_after_forward": True,
    "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "cpu_ram_efficient_loading": True,
    "state_dict_type": "FULL_STATE_DICT",
}


@dataclass(frozen=True, slots=True)
class Files:
    """The files of one job: the config of ``tool``, and those that it refers to or that stand beside it."""

    tool: str
    config: Document
    deepspeed: Document | None = None
    accelerate: Document | None = None

    @property
    def documents(self) -> tuple[Document, ...]:
        """All of them, the config first."""
        return tuple(each for each in (self.config, self.deepspeed, self.accelerate) if each is not None)


@dataclass(frozen=True, slots=True)
class _Place:
    """A table in a file: ``prefix`` leads to it."""

    document: Document
    prefix: tuple[str, ...] = ()

    @property
    def table(self) -> Mapping[str, Any]:
        found: Any = self.document.table
        for name in self.prefix:
            found = found.get(name) if isinstance(found, Mapping) else None
        return found if isinstance(found, Mapping) else {}

    def edit(self, *place: str, value: Any) -> Edit:
        return Edit(self.document.path, (*self.prefix, *place), value)


def engine_edits(files: Files, sharding: str | None, offload: str | None) -> tuple[Edit, ...] | None:
    """Keys for another sharding, another offload or both (``None``: as it is);
    ``None`` where no file can say it.
    """
    if offload is not None and offload not in _DEVICES:
        return None
    deepspeed = deepspeed_place(files)
    launch = files.config if files.tool == "accelerate" else files.accelerate
    # A launch file may choose the other engine, unless the config itself names DeepSpeed's.
    switches = sharding == "fsdp" and launch is not None and not files.config.table.get("deepspeed")
    if deepspeed is not None and not switches:
        return _in_deepspeed(files, deepspeed, sharding, offload)
    if launch is not None:
        return _in_accelerate(_Place(launch), sharding, offload)
    own = _Place(files.config)
    if files.tool == "ms-swift":
        return _by_name(own, sharding, offload)
    if files.tool not in _TRAINERS:
        return None
    if sharding is not None and sharding_named(sharding).zero_stage:
        return _new_deepspeed(files, sharding, offload)
    return _in_own_fsdp(files.tool, own, sharding, offload)


def _by_name(own: _Place, sharding: str | None, offload: str | None) -> tuple[Edit, ...] | None:
    """A file that ms-swift ships, in place of another of them; DeepSpeed and FSDP refuse each other."""
    said = own.table.get("deepspeed")
    before = next((key for key, name in _MS_SWIFT.items() if name == said), None)
    if own.table.get("fsdp") or (said and before is None):
        return None
    if sharding == "fsdp":
        return (own.edit("fsdp", value="fsdp2"),) if not said and offload in (None, "none") else None
    stage, device = before or ("", "none")
    name = _MS_SWIFT.get((sharding or stage, offload or device))
    return None if name is None else (own.edit("deepspeed", value=name),)


def deepspeed_place(files: Files) -> _Place | None:
    """Where a DeepSpeed configuration stands: a file of its own, or a table in the config."""
    if files.deepspeed is not None:
        return _Place(files.deepspeed)
    if files.tool == "deepspeed":
        return _Place(files.config)
    return (
        _Place(files.config, ("deepspeed",))
        if isinstance(files.config.table.get("deepspeed"), dict)
        else None
    )


def _in_deepspeed(
    files: Files, place: _Place, sharding: str | None, offload: str | None
) -> tuple[Edit, ...] | None:
    if sharding is not None and not sharding.startswith("zero"):
        return None
    zero = _Place(place.document, (*place.prefix, "zero_optimization"))
    edits = [] if sharding is None else [zero.edit("stage", value=sharding_named(sharding).zero_stage)]
    edits += [place.edit(name, value=value) for name, value in _said_dtype(files, sharding).items()]
    for name, device in _devices(offload):
        if device == "none":
            edits += [zero.edit(name, value=REMOVED)] if name in zero.table else []
        else:
            edits.append(zero.edit(name, "device", value=device))
    return tuple(edits)


def _said_dtype(files: Files, sharding: str | None) -> dict[str, object]:
    """Axolotl divides weights before ``auto`` is filled in, and keeps them in fp32 then."""
    if files.tool != "axolotl" or sharding != "zero3":
        return {}
    return {"fp16" if files.config.table.get("fp16") else "bf16": {"enabled": True}}


def _devices(offload: str | None) -> tuple[tuple[str, str], ...]:
    if offload is None:
        return ()
    return tuple(zip(("offload_optimizer", "offload_param"), _DEVICES[offload], strict=True))


def _new_deepspeed(files: Files, sharding: str, offload: str | None) -> tuple[Edit, ...] | None:
    """A table in the config itself, which is taken like a file.

    Source: transformers 5.23.0 training_args.py:1463 (``deepspeed: dict | str``), which LLaMA-Factory and TRL
    hand on as it is; axolotl 0.19.0 utils/schemas/config.py:1051.
    """
    own = _Place(files.config)
    if own.table.get("fsdp") or own.table.get("fsdp_config"):
        return None
    stage = sharding_named(sharding).zero_stage
    zero: dict[str, Any] = {"stage": stage}
    zero |= {name: {"device": device} for name, device in _devices(offload) if device != "none"}
    zero |= _NEW_STAGE_3 if stage == 3 else {"reduce_bucket_size": AUTO}
    new = {**_NEW_DEEPSPEED, **_said_dtype(files, sharding), "zero_optimization": zero}
    return (own.edit("deepspeed", value=new),)


def _in_accelerate(launch: _Place, sharding: str | None, offload: str | None) -> tuple[Edit, ...] | None:
    kind = str(launch.table.get("distributed_type") or "NO").upper()
    to_zero = sharding is not None and sharding.startswith("zero")
    if (kind == "DEEPSPEED" and sharding is None) or (kind != "FSDP" and to_zero):
        return _zero_in_accelerate(launch, kind, sharding, offload)
    if sharding not in (None, "fsdp") or (kind != "FSDP" and sharding is None):
        return None
    edits: list[Edit] = []
    if kind != "FSDP":
        settings = {"fsdp_version": 2, **{f"fsdp_{name}": value for name, value in _NEW_FSDP.items()}}
        edits = [launch.edit("distributed_type", value="FSDP"), launch.edit("fsdp_config", value=settings)]
    elif sharding is not None:
        edits = [
            launch.edit("fsdp_config", "fsdp_version", value=2),
            launch.edit("fsdp_config", "fsdp_reshard_after_forward", value=True),
        ]
    if offload is None:
        return tuple(edits)
    return (
        (*edits, launch.edit("fsdp_config", "fsdp_offload_params", value=True))
        if offload == "optimizer+params"
        else None
    )


def _zero_in_accelerate(
    launch: _Place, kind: str, sharding: str | None, offload: str | None
) -> tuple[Edit, ...] | None:
    if sharding is not None and not sharding.startswith("zero"):
        return None
    edits = [] if kind == "DEEPSPEED" else [launch.edit("distributed_type", value="DEEPSPEED")]
    if sharding is not None:
        stage = sharding_named(sharding).zero_stage
        edits.append(launch.edit("deepspeed_config", "zero_stage", value=stage))
        if stage == 3:
            edits.append(launch.edit("deepspeed_config", "zero3_save_16bit_model", value=True))
    there = _Place(launch.document, ("deepspeed_config",)).table
    for name, device in _devices(offload):
        if there.get(f"{name}_device", "none") != device:
            edits.append(launch.edit("deepspeed_config", f"{name}_device", value=device))
    return tuple(edits)


def _in_own_fsdp(
    tool: str, own: _Place, sharding: str | None, offload: str | None
) -> tuple[Edit, ...] | None:
    """FSDP in a trainer's own keys; what is there already gets the offload only."""
    there = bool(own.table.get("fsdp") or own.table.get("fsdp_config"))
    if (
        sharding not in (None, "fsdp")
        or (sharding is None and not there)
        or offload not in (None, "optimizer+params")
    ):
        return None
    if tool == "axolotl":
        edits: list[Edit] = []
        if sharding is not None:
            edits.append(own.edit("fsdp_version", value=2))
            if not there:
                # Over 4 bits it would not start (refusals.py).
                efficient = not own.table.get("load_in_4bit")
                edits.append(
                    own.edit("fsdp_config", value={**_NEW_FSDP, "cpu_ram_efficient_loading": efficient})
                )
        return (*edits, own.edit("fsdp_config", "offload_params", value=True)) if offload else tuple(edits)
    # As text it is deprecated and still read (transformers 5.23.0 training_args.py:2888-2939,
    # 5.6.0 the same).
    words = "full_shard auto_wrap offload" if offload else "full_shard auto_wrap"
    edits = [own.edit("fsdp", value=words)]
    return (*edits, own.edit("fsdp_config", "version", value=2)) if sharding is not None else tuple(edits)
