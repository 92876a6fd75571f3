"""Keys of Megatron-Core that several tools hand on under its own names: degrees of parallelism, layers that
are computed again, capacities of experts.

Source: megatron-core 0.16.1 model_parallel_config.py, transformer/transformer_config.py.
"""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.key_tables import texts_in
from planner.configs.shared.keys import Keys
from planner.domain.recipes.fp8 import FP8S
from planner.errors import show

DEGREES = texts_in("megatron.toml", "degrees")
UNMODELLED = texts_in("megatron.toml", "unmodelled")
WHOLE_OPTIMIZER = "an optimizer that each GPU has whole is not modelled under Megatron"
SINGLE_OPERATORS = "an activation by single operators is not modelled"
SINGLE_EXPERTS = "experts one after the other are not modelled"
OTHER_PRECISION = "training in another precision than bf16 is not modelled under Megatron"
OTHER_DISPATCHER = "this dispatcher is not modelled; alltoall is"
OTHER_OPTIMIZER = "this optimizer is not modelled under Megatron; adam is"
ROUTER_IN_16_BITS = "experts whose features are divided beside a router in 16 bits are not modelled"
EXPERT_TENSOR = {"expert_tensor_parallel_size": "expert_tensor_parallel"}
_PARTS = "other parts than core_attn are not modelled; recompute_granularity full is"
_SOME = "some layers, and several at a time, are not modelled; recompute_method uniform of 1 layer is"


def _read_context(keys: Keys, reading: Reading) -> None:
    """How many GPUs divide each sequence.

    Raises:
        NotModelledError: otherwise than by a ring or for heads, over pieces from both ends.
    """
    if (parts := keys.count("context_parallel_size") or 1) == 1:
        return
    reading.say("context_parallel", parts, keys.where("context_parallel_size"))
    kinds = set(keys.names("cp_comm_type") or ("p2p",))
    if kinds == {"a2a"}:
        reading.switch("exchanges_heads", True, keys.where("cp_comm_type"))
    elif kinds != {"p2p"}:
        why = "sequences are exchanged in a ring or for heads of all layers; p2p and a2a are modelled"
        raise keys.not_modelled("cp_comm_type", why)
    if keys.text("cp_partition_mode") not in (None, "zigzag"):
        raise keys.not_modelled("cp_partition_mode", "other pieces than zigzag are not modelled")


def read_degrees(keys: Keys, reading: Reading, *, divides_tokens: bool | None) -> None:
    """How many GPUs divide matrices, layers, experts and sequences; runs of layers of each group.

    ``divides_tokens``: whether tokens are divided beside matrices.

    Raises:
        NotModelledError: matrices without tokens.
    """
    for name, target in DEGREES.items():
        if (degree := keys.count(name) or 1) > 1:
            reading.say(target, degree, keys.where(name))
    _read_context(keys, reading)
    read_capacity(keys, reading)
    if "tensor_parallel" in reading.said and not divides_tokens:
        raise keys.not_modelled(
            "tensor_model_parallel_size",
            "divided matrices without sequence_parallel are not modelled; sequence_parallel true is",
        )
    runs = keys.count("virtual_pipeline_model_parallel_size") or 1
    if reading.value("pipeline_parallel") is None or runs == 1:
        return
    place = "virtual_pipeline_model_parallel_size"
    reading.say("pipeline_schedule", "interleaved", keys.where(place))
    reading.say("pipeline_runs", runs, keys.where(place))


def read_capacity(keys: Keys, reading: Reading) -> None:
    """Rows above a multiple of an even share are dropped, of which even shares have none.

    Source: megatron-core 0.16.1 transformer/moe/moe_utils.py apply_router_token_dropping.
    """
    factor = keys.number("moe_expert_capacity_factor")
    if factor is not None and factor < 1:
        why = "capacities below an even share, which drop rows in any case, are not modelled"
        raise keys.not_modelled("moe_expert_capacity_factor", why)
    if factor is not None:
        text = "tokens are taken to be spread evenly, so that no expert has more than its capacity"
        reading.remark(keys.where("moe_expert_capacity_factor"), text)


def say_whole_layers(keys: Keys, reading: Reading, method: str, count: int) -> None:
    """``recompute_granularity: full``, with what the tool takes for ``recompute_method`` and
    ``recompute_num_layers``.

    Raises:
        NotModelledError: some layers, or several at a time.
    """
    if (method, count) != ("uniform", 1):
        raise keys.not_modelled("recompute_method" if method != "uniform" else "recompute_num_layers", _SOME)
    reading.say("gradient_checkpointing", True, keys.where("recompute_granularity"))


def read_fp8(keys: Keys, reading: Reading, names: tuple[str, str, str], *, released: bool = False) -> None:
    """Products in 8 bits: ``names`` of the format, the scaling and the switch that keeps weights so.
    ``released``: the checkpoint is in FP8, and its weights are kept without a copy in 16 bits.

    Source: megatron-core 0.16.1 fp8_utils.py get_fp8_recipe; mcore-bridge f020e479 bridge/gpt_bridge.py:194.

    Raises:
        NotModelledError: another scaling, or MXFP8 kept in 8 bits.
    """
    of_format, of_scaling, of_weights = names
    kept = keys.flag(of_weights)
    if keys.text(of_format) is None:
        keys.skip((of_scaling,))
        if kept:
            raise keys.stops(of_weights, f"Megatron stops without {of_format}")
        return
    scaling = keys.text(of_scaling) or "delayed"
    fp8 = f"te-{scaling}{'-gathered' if kept else ''}"
    if fp8 not in FP8S:
        raise keys.not_modelled(of_weights if kept else of_scaling, f"{show(scaling)} is not modelled here")
    reading.say("fp8", fp8, keys.where(of_format))
    if released and fp8 == "te-blockwise-gathered":
        reading.switch("whole_masters", True, keys.where(of_weights))
        text = "of a checkpoint in FP8 each GPU keeps whole masters; a copy in 16 bits needs less"
        reading.remark(keys.where(of_weights), text)


def recomputed(keys: Keys) -> str:
    """What a file asks Megatron to compute again: ``full``, ``selective``, ``none``, or nothing where it does
    not say.

    Raises:
        UsageError: another word.
    """
    kind = keys.text("recompute_granularity") or ""
    if kind not in ("", "none", "full", "selective"):
        raise keys.wrong("recompute_granularity", "full, selective or none", kind)
    return kind


def refuse_parts(keys: Keys) -> None:
    """``recompute_granularity: selective``, of attention's kernel alone where nothing is said.

    Raises:
        NotModelledError: other parts of a layer.
    """
    if (keys.names("recompute_modules") or ("core_attn",)) != ("core_attn",):
        raise keys.not_modelled("recompute_modules", _PARTS)
