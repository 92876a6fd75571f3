"""``use_kt``: experts that KTransformers computes and trains on the CPU.

Source: hiyouga/LLaMA-Factory ff6d4d12e (2026-08-18) hparams/model_args.py KTransformersArguments,
model/model_utils/checkpointing.py; kt-kernel 0.7.0 python/sft/config.py KTConfig, wrapper.py
wrap_moe_layers_with_kt_wrapper.
"""

from __future__ import annotations

from planner.configs.said_by_file import Reading, Stop
from planner.configs.shared.key_tables import names_in, texts_in
from planner.configs.shared.keys import Keys
from planner.domain.model import ModelSpec
from planner.errors import UsageError, show

_SWITCH, _CONFIG, _ACTIVATIONS = "use_kt", "kt_config", "kt_cpu_activation"
_PATHS = ("kt_weight_path", "kt_non_expert_weight_path", "kt_expert_checkpoint_path")
# Keys of the KTransformers that LLaMA-Factory took up to 2026-04 (its 0.9.4 hparams/model_args.py).
_OLD = ("kt_optimize_rule", "cpu_infer", "chunk_size", "kt_maxlen", "kt_use_cuda_graph", "kt_mode")
_SPREAD = "accelerate-kt 1.14.0 utils/dataclasses.py KTransformersPlugin: several processes need FSDP2"
_OTHER = "experts in '{}' are not modelled; bf16 and int8 are"
_FORMATS = {"amxbf16": "bf16", "int8": "int8", "amxint8": "int8"}
_HARMLESS = names_in("llama-factory.toml", "harmless_of_host_experts")
_NOT_BESIDE = texts_in("llama-factory.toml", "not_beside_host_experts")


def read_host_experts(keys: Keys, reading: Reading, *, old: bool) -> None:
    """Enter what a file says of experts on the CPU; when its checkpointing is read.

    Raises:
        UsageError: a file that LLaMA-Factory or KTransformers stops at.
        NotModelledError: another KTransformers, or something that was not read.
    """
    keys.skip((*_PATHS, "kt_lora_expert_num", "kt_lora_expert_intermediate_size"))
    if not keys.flag(_SWITCH):
        return
    if old or any(keys.has(name) for name in _OLD):
        why = "KTransformers as LLaMA-Factory had it up to 2026-04 is not modelled; that of 2026-05 is"
        raise keys.not_modelled(_SWITCH, why)
    keys.refuse_switched_on({"kt_use_lora_experts": "more experts on the card are not modelled"})
    for name, why in _NOT_BESIDE.items():
        if keys.is_on(name):
            raise _stops(keys, name, f"{why} beside {_SWITCH}")
    _read_settings(keys, reading)
    _read_activations(keys, reading)
    reading.said.pop("checkpoint_reentrant", None)
    reading.say("checkpoint_reentrant", False, keys.where(_SWITCH))
    why = f"{keys.where(_SWITCH)}: KTransformers stops at this model, whose experts it does not take"
    reading.stops.append(Stop(_is_refused, why))
    if reading.value("sharding") is None:
        reading.several = ("fsdp", _SPREAD)


def _is_refused(model: ModelSpec) -> bool:
    """Models without experts, and DeepSeek V2: its router has no bias, which a router of its own must have,
    and returns no weights, which a linear one must.

    Source: kt-kernel 0.7.0 python/sft/layer.py KTMoELayerWrapper.__init__ (``e_score_correction_bias``),
    _compute_routing (``deepseek_gate``); arch.py get_moe_arch_config.
    """
    return not model.is_moe or model.architecture == "deepseek_v2"


def _stops(keys: Keys, name: str, why: str) -> UsageError:
    return keys.stops(name, f"{why}: LLaMA-Factory stops")


def _read_settings(keys: Keys, reading: Reading) -> None:
    """``kt_config``: how weights lie in host RAM, and in how many parts."""
    settings = keys.part(_CONFIG)
    if settings is None:
        reading.switch("host_experts", "bf16", keys.where(_SWITCH))
        return
    settings.skip(_HARMLESS)
    settings.refuse_switched_on({"kt_num_gpu_experts": "experts on the card beside those are not modelled"})
    if settings.flag("kt_share_backward_bb") is False:
        why = "a second copy of all experts for the backward pass is not modelled; true is the default"
        raise settings.not_modelled("kt_share_backward_bb", why)
    kind = _kind(settings)
    if kind == "int8" and not keys.has("kt_weight_path"):
        raise _stops(keys, _CONFIG, "experts in int8 need kt_weight_path")
    reading.switch("host_experts", kind, keys.where(_CONFIG))
    parts = settings.count("kt_threadpool_count")
    if settings.flag("kt_tp_enabled") and parts is not None:
        reading.switch("host_parts", parts, settings.where("kt_threadpool_count"))


def _kind(settings: Keys) -> str:
    """The dtype of weights that format and backend ask for; bf16 where nothing is said."""
    said, backend = settings.text("kt_expert_weight_format"), settings.text("kt_backend")
    kind = None if said is None else said.strip().lower()
    if kind not in (None, "bf16", "int8"):
        raise settings.not_modelled("kt_expert_weight_format", _OTHER.format(show(str(said))))
    if backend is None:
        return kind or "bf16"
    found = {**_FORMATS, "auto": kind}.get(backend.lower())
    if found is None:
        raise settings.not_modelled("kt_backend", _OTHER.format(show(backend)))
    if kind not in (None, found):
        raise _stops(settings, "kt_backend", f"does not go with kt_expert_weight_format: {kind}")
    return found


def _read_activations(keys: Keys, reading: Reading) -> None:
    """Whether the host keeps activations, as the card does where nothing is said."""
    said, kept = keys.text(_ACTIVATIONS), bool(keys.flag("disable_gradient_checkpointing"))
    if said not in (None, "retain", "recompute"):
        raise keys.wrong(_ACTIVATIONS, "retain or recompute", said)
    if said == "recompute" and kept:
        raise _stops(keys, _ACTIVATIONS, "recompute needs gradient checkpointing")
    keeps = kept if said is None else said == "retain"
    reading.switch("keeps_host_activations", keeps, keys.where(_SWITCH if said is None else _ACTIVATIONS))
