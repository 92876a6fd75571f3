"""What a Trainer of Transformers or TRL holds, read without importing either: arguments, model,
PEFT and quantisation.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from planner.catalog.hf_config import model_from_config
from planner.domain.model import ModelSpec
from planner.domain.recipes.recipe import BITSANDBYTES
from planner.errors import NotModelledError, UsageError, show
from planner.words import words

# Names of packed 4-bit and int8 storage: what it holds is no dtype of a load.
_FLOATS = {"torch.float32": "float32", "torch.bfloat16": "bfloat16", "torch.float16": "float16"}
# What scripts do with their own command line; no Trainer asks for it (transformers 5.23.0 training_args.py).
_OF_SCRIPTS = frozenset({"do_train", "do_eval", "do_predict"})
# Adapters of LoRA that only some matrices have,
# or that differ from matrix to matrix (peft 0.21 tuners/lora/config.py).
_UNEVEN = words(
    "rank_pattern layers_to_transform target_parameters trainable_token_indices layer_replication"
)


@dataclass(frozen=True, slots=True)
class TrainerJob:
    """A job that is about to start.

    ``args``: TrainingArguments or SFTConfig.  ``model``: the module, if there is one.  ``model_config`` and
    ``peft_config``: of the model or given beside it.  ``samples``: length of the training set, if it has one.
    ``accelerator``: Accelerate's state.
    """

    args: Any
    model: Any = None
    model_config: Any = None
    peft_config: Any = None
    samples: int | None = None
    accelerator: Any = None

    @property
    def is_sft(self) -> bool:
        """Whether the arguments are those of TRL's SFTTrainer."""
        return any(each.__name__ == "SFTConfig" for each in type(self.args).__mro__)

    @property
    def place(self) -> str:
        """What messages call the arguments."""
        return type(self.args).__name__


def held_by(trainer_or_args: Any, model_config: Any = None, peft_config: Any = None) -> TrainerJob:
    """What a Trainer, or its arguments alone, hold.

    Raises:
        UsageError: neither.
    """
    if callable(getattr(trainer_or_args, "to_dict", None)):
        return TrainerJob(trainer_or_args, None, model_config, peft_config)
    args = getattr(trainer_or_args, "args", None)
    if not callable(getattr(args, "to_dict", None)):
        raise UsageError(
            f"precheck takes a Trainer or its TrainingArguments, but it is {show(trainer_or_args)}"
        )
    accelerator = getattr(trainer_or_args, "accelerator", None)
    held = held_by_model(
        args, getattr(trainer_or_args, "model", None), getattr(trainer_or_args, "train_dataset", None)
    )
    return replace(
        held,
        model_config=model_config if model_config is not None else held.model_config,
        peft_config=peft_config if peft_config is not None else held.peft_config,
        accelerator=getattr(accelerator, "state", None),
    )


def held_by_model(args: Any, model: Any, dataset: Any = None) -> TrainerJob:
    """What arguments and a model hold, the model taken out of what wraps it for distribution."""
    while model is not None and not hasattr(model, "config") and hasattr(model, "module"):
        model = model.module
    samples = len(dataset) if hasattr(dataset, "__len__") else None
    return TrainerJob(args, model, getattr(model, "config", None), _active_peft(model), samples or None)


def spec_of(held: TrainerJob) -> ModelSpec | None:
    """The model by its live config; ``None`` without one.

    Raises:
        InputFileError: a field of the config that is missing or out of range.
        NotModelledError: an architecture without formulas.
    """
    if held.model_config is None:
        return None
    where = "model.config"
    data = table_of(held.model_config, where)
    spec = model_from_config(data, where)
    if spec.stored is not None and spec.stored.quantization in BITSANDBYTES:
        spec = replace(spec, stored=None)  # may be of a checkpoint that was packed while it was loaded
    name = data.get("_name_or_path") or getattr(held.model_config, "_name_or_path", "") or spec.architecture
    return replace(spec, id=str(name)[:200], source=where)


def table_of(config: Any, where: str) -> Mapping[str, Any]:
    """A config object or table as plain JSON values, whatever types its library holds in it.

    Raises:
        UsageError: neither.
    """
    data = config.to_dict() if callable(getattr(config, "to_dict", None)) else config
    if not isinstance(data, Mapping):
        raise UsageError(f"{where} must be a config or a table, but it is {show(config)}")
    plain: dict[str, Any] = json.loads(json.dumps(dict(data), default=_plain, skipkeys=True))
    return plain


def arguments_of(held: TrainerJob) -> dict[str, Any]:
    """The arguments as the keys of a config file, with what other objects hold that has a key there."""
    given = table_of(held.args, held.place).items()
    table = {name: value for name, value in given if value is not None and name not in _OF_SCRIPTS}
    if (kernel := _of_config(held, "_attn_implementation")) is not None:
        table["attn_implementation"] = str(kernel)
    if _checkpoints(held.model):
        table |= {"gradient_checkpointing": True, "activation_checkpointing": True}
    return table | _engine(held, table)


def defaults_of(args: Any) -> dict[str, Any]:
    """Plain default values of the arguments' fields, by name."""
    if not dataclasses.is_dataclass(args):
        return {}
    return {
        each.name: each.default
        for each in dataclasses.fields(args)
        if each.default is not dataclasses.MISSING
    }


def quantization_of(held: TrainerJob) -> Mapping[str, Any] | None:
    """The table of what bitsandbytes made of the model, ``None`` where it made nothing;
    the model knows what came packed.
    """
    given = _of_config(held, "quantization_config")
    if given is None:
        return None
    table = table_of(given, "model.config.quantization_config")
    return table if table.get("quant_method", "bitsandbytes") == "bitsandbytes" else None


def refuse_uneven(peft: Any) -> None:
    """Refuse adapters that differ from matrix to matrix, and other kinds than LoRA and VeRA.

    Raises:
        NotModelledError: such a setting, by name.
    """
    kind = adapter_kind(peft)
    if kind not in ("LORA", "VERA"):
        raise NotModelledError(f"peft_config: '{show(kind)}' is not modelled; LORA and VERA are")
    for name in _UNEVEN:
        if getattr(peft, name, None):
            raise NotModelledError(f"peft_config.{name}: adapters on part of the matrices are not modelled")


def adapter_kind(peft: Any) -> str:
    """What PEFT calls the kind of an adapter, such as ``LORA``."""
    return str(getattr(peft.peft_type, "value", peft.peft_type)).upper()


def dtype_of_base(held: TrainerJob) -> str | None:
    """Dtype of most of the weights that are neither quantised nor an adapter's, in PyTorch's words;
    ``None`` where unknown.
    """
    sizes: dict[str, int] = {}
    for name, parameter in _parameters(held.model):
        dtype = _FLOATS.get(str(parameter.dtype))
        if dtype is not None and not _is_of_adapter(name):
            sizes[dtype] = sizes.get(dtype, 0) + parameter_count(parameter)
    if sizes:
        return max(sizes, key=lambda name: sizes[name])
    given = _of_config(held, "dtype") or _of_config(held, "torch_dtype")
    return None if given is None else str(given).removeprefix("torch.")


def dtype_of_adapters(held: TrainerJob) -> str | None:
    """Dtype of the trained adapters, ``None`` where there are none or they differ."""
    found = {str(parameter.dtype) for name, parameter in _parameters(held.model) if _is_of_adapter(name)}
    return _FLOATS.get(found.pop()) if len(found) == 1 else None


def trained_and_frozen(held: TrainerJob) -> tuple[int, int] | None:
    """Parameters that are trained and those that are not;
    ``None`` where FSDP has flattened them or there is no model.

    4-bit weights count as packed: two to a byte, which is told by their storage only.
    """
    trained = frozen = 0
    for _, parameter in _parameters(held.model):
        if type(parameter).__name__ == "FlatParameter":
            return None
        if parameter.requires_grad:
            trained += parameter_count(parameter)
        else:
            frozen += parameter_count(parameter)
    return (trained, frozen) if trained or frozen else None


def parameter_count(parameter: Any) -> int:
    """Numbers in a parameter, in all of it where ZeRO-3 has divided it."""
    return int(getattr(parameter, "ds_numel", None) or parameter.numel())


def loaded_version(package: str) -> str | None:
    """Version of a package that is imported already, without the build that it names behind ``+``."""
    version = getattr(sys.modules.get(package.replace("-", "_")), "__version__", None)
    return str(version).partition("+")[0] if isinstance(version, str) else None


def _of_config(held: TrainerJob, name: str) -> Any:
    """A value of the model's config, be that an object or a table."""
    config = held.model_config
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def _parameters(model: Any) -> Iterator[tuple[str, Any]]:
    return iter(()) if model is None else iter(model.named_parameters())


def _is_of_adapter(name: str) -> bool:
    return any(mark in name for mark in (".lora_", ".vera_", ".modules_to_save."))


def _active_peft(model: Any) -> Any:
    """The config of the adapter that is trained; ``None`` without PEFT."""
    configs = getattr(model, "peft_config", None)
    if not isinstance(configs, Mapping) or not configs:
        return None
    if len(configs) > 1:
        raise NotModelledError(f"peft_config: {len(configs)} adapters on one model are not modelled; one is")
    return next(iter(configs.values()))


def _checkpoints(model: Any) -> bool:
    """Whether the model itself was told to checkpoint (Transformers marks each layer;
    5.23 modeling_utils.py).
    """
    modules = model.modules() if callable(getattr(model, "modules", None)) else ()
    return any(getattr(module, "gradient_checkpointing", False) is True for module in modules)


def _engine(held: TrainerJob, table: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that ``accelerate launch`` gave and the arguments do not hold.

    Source: accelerate 1.15.0 state.py ``AcceleratorState``; utils/dataclasses.py
    ``DeepSpeedPlugin.hf_ds_config``.
    """
    plugin = getattr(held.accelerator, "deepspeed_plugin", None)
    if plugin is not None and not table.get("deepspeed"):
        return {"deepspeed": dict(table_of(plugin.hf_ds_config.config, "deepspeed"))}
    plugin = getattr(held.accelerator, "fsdp_plugin", None)
    if plugin is None or table.get("fsdp"):
        return {}
    offloads = bool(getattr(plugin.cpu_offload, "offload_params", plugin.cpu_offload))
    strategy = str(
        getattr(plugin.sharding_strategy, "name", plugin.sharding_strategy or "full_shard")
    ).lower()
    if plugin.fsdp_version == 2:
        strategy = "full_shard" if plugin.reshard_after_forward else "shard_grad_op"
    config = {
        "version": plugin.fsdp_version,
        "activation_checkpointing": bool(plugin.activation_checkpointing),
    }
    return {"fsdp": [strategy, "offload"] if offloads else [strategy], "fsdp_config": config}


def _plain(value: Any) -> Any:
    """A value that JSON has no type for: an enumeration by value, a set as a list, anything else as text."""
    if isinstance(value, enum.Enum):
        return value.value
    return sorted(map(str, value)) if isinstance(value, set | frozenset) else str(value)
