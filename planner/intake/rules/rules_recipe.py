"""Rules about method, quantisation, adapters and batch."""

from __future__ import annotations

from collections.abc import Callable

from planner.domain.model import LinearSpec
from planner.domain.recipes.attention_kernels import ATTENTION_FACTS
from planner.domain.recipes.optimizers import TRAINED_BYTES
from planner.domain.recipes.recipe import BITSANDBYTES, DTYPE_BYTES, PREPACKED, TARGET_PARAMETER
from planner.errors import REFUSED_BY_TOOL
from planner.intake.linears import (
    linear_names,
    partly_named,
    reaches_experts,
    target_names,
    unmatched_modules,
    unmatched_targets,
)
from planner.intake.rules.rule import Case, not_modelled, refuse, warn
from planner.intake.supported import lacks_model, minor_of_transformers_4
from planner.units import format_gib
from planner.words import words

# Methods that name a quantisation, and which may be given beside them.
_METHOD_ALLOWS = {"qlora": ("nf4", "fp4", *sorted(PREPACKED)), "int8": ("int8",)}
_LORA_FIELDS = words("lora_rank lora_targets lora_dropout adapter_dtype dora oft_block_size vera")
_FOUR_BIT = ("nf4", "fp4")


def _contradicts_method(case: Case) -> bool:
    allowed = _METHOD_ALLOWS.get(case.given["method"].value) if "method" in case.given else None
    return allowed is not None and case.numerics.quantization not in allowed


def _contradiction_text(case: Case) -> str:
    method = case.given["method"].value
    return (
        f"{method} allows {', '.join(_METHOD_ALLOWS[method])}, quantization says {case.numerics.quantization}"
    )


def _lora_fields_said(case: Case) -> list[str]:
    return [name for name in _LORA_FIELDS if name in case.given]


def _unmatched(case: Case) -> tuple[str, ...]:
    """Targets that name no matrix."""
    targets = case.adapter.targets if case.adapter else ()
    return unmatched_targets(case.model, targets, case.recipe.frozen)


def _strange(case: Case) -> tuple[str, ...]:
    """Targets that name neither a matrix nor the token table."""
    table = case.model.token_embedding.name
    return tuple(each for each in _unmatched(case) if each.rpartition(".")[2] != table)


def _adapts_table(case: Case) -> bool:
    return _strange(case) != _unmatched(case)


def _mixes_dtypes_in_root(case: Case) -> bool:
    is_fsdp1 = case.recipe.uses_fsdp and not case.recipe.sharding.dtensors
    apart = case.adapter is not None and case.adapter.dtype != case.numerics.load_dtype
    return is_fsdp1 and apart and _adapts_table(case)


def _table_adapter_text(case: Case) -> str:
    table, rank = case.model.token_embedding, case.adapter.rank if case.adapter else 0
    n_bytes = rank * (table.rows + table.width) * TRAINED_BYTES
    return f"{table.name}: {format_gib(float(n_bytes))} of weights, gradients and states more"


def _part_of_experts(case: Case) -> tuple[str, ...]:
    return partly_named(case.model, case.adapter.targets) if case.adapter else ()


def _all_targets_unmatched(case: Case) -> bool:
    return case.adapter is not None and len(_unmatched(case)) == len(case.adapter.targets)


def _targets_parameters(case: Case) -> bool:
    """Whether adapters are put on parameters of a model that has experts;
    elsewhere PEFT 0.21 tuners/tuners_utils.py says that nothing matched.
    """
    targets = case.adapter.targets if case.adapter else ()
    experts = any(group.block.mlp.n_experts for group in case.model.groups)
    return experts and any(each.startswith(TARGET_PARAMETER) for each in targets)


def _packs_parameters(case: Case) -> bool:
    """Whether experts are no bare tensors, be it that they are modules or that the stack packs them."""
    whole = case.stack.expert_targets == "any" and case.numerics.quantization == "none"
    return case.stack.passes_over == "nothing" and not (case.stack.fused_experts and whole)


def _dropout(case: Case) -> float:
    return case.adapter.dropout if case.adapter else 0.0


def adapts_head(case: Case) -> bool:
    """Whether the head gets an adapter, which only its name asks for."""
    targets = case.adapter.targets if case.adapter else ()
    return case.model.head.name in {target.rpartition(".")[2] for target in targets}


def _unmatched_targets_text(case: Case) -> str:
    targets = _strange(case) or _unmatched(case)
    modules = [each for each in targets if not each.startswith(TARGET_PARAMETER)]
    if not modules:
        return _unmatched_parameters_text(case, targets)
    return f"{', '.join(targets)}; {case.model.id} has {', '.join(target_names(case.model))}"


def _unmatched_parameters_text(case: Case, targets: tuple[str, ...]) -> str:
    """Names the key that such targets are written under, in files of Axolotl, TRL and PEFT."""
    names = ", ".join(each.removeprefix(TARGET_PARAMETER) for each in targets)
    stacked = (
        linear.name
        for group in case.model.groups
        for linear in group.block.linears
        if linear.group == "expert" and linear.kind == "parameter"
    )
    has = ", ".join(f"mlp.experts.{name}" for name in dict.fromkeys(stacked))
    return f"lora_target_parameters {names}; {case.model.id} has {has or 'no experts that are one tensor'}"


def _unmatched_modules_text(case: Case) -> str:
    modules = unmatched_modules(case.model, case.adapter.modules_to_save) if case.adapter else ()
    known = dict.fromkeys((case.model.token_embedding.name, *linear_names(case.model)))
    return f"{', '.join(modules)}; {case.model.id} has {', '.join(known)}"


def _fused_expert_bytes(case: Case) -> int:
    """Bytes of expert tensors that bitsandbytes leaves in the load dtype."""
    return _expert_bytes(case, lambda _: True) if case.numerics.quantization in BITSANDBYTES else 0


def adapted_expert_bytes(case: Case) -> int:
    """Bytes of expert tensors that PEFT makes adapted copies of."""
    adapter = case.adapter
    return (
        0 if adapter is None else _expert_bytes(case, lambda linear: reaches_experts(linear, adapter.targets))
    )


def _expert_bytes(case: Case, counts: Callable[[LinearSpec], bool]) -> int:
    """Bytes in the load dtype of the fused expert tensors that count; 0 where the stack has none."""
    experts = sum(
        group.count * linear.weight_count
        for group in case.model.groups
        for linear in group.block.linears
        if linear.group == "expert" and linear.kind == "parameter" and counts(linear)
    )
    return 0 if case.stack.passes_over == "nothing" else experts * DTYPE_BYTES[case.numerics.load_dtype]


def _fp16_gradients(case: Case) -> bool:
    if not case.scales_fp16_loss:
        return False
    if case.adapter is not None:
        return case.adapter.dtype == "fp16"
    return case.numerics.load_dtype == "fp16" and not case.stack.trainable_fp32


def _computes_in_fp32(case: Case) -> bool:
    numerics, packs = case.numerics, case.stack.autocast_as_weights and case.model.stored is None
    return packs and numerics.quantization in _FOUR_BIT and numerics.load_dtype != "bf16"


def _learned_positions(case: Case) -> bool:
    return any(group.block.attention.position == "learned" for group in case.model.groups)


def _too_long(case: Case) -> bool:
    limit = case.model.max_position_tokens
    return limit is not None and bool(case.recipe.batch.seq_len > limit)


def _length_text(case: Case) -> str:
    return (
        f"{case.recipe.batch.seq_len:,} tokens, {case.model.id} was made for "
        f"{case.model.max_position_tokens:,}"
    )


def _selects(case: Case) -> bool:
    return case.recipe.gradient_checkpointing and case.recipe.checkpoint_policy == "selective-op"


def _has_read_flex(case: Case) -> bool:
    return case.recipe.attention == "flex" and case.stack.selective_flex != "unread"


def _has_unknown_operators(case: Case) -> bool:
    """Whether layers call products or attention by operators of which nobody read whether the policy keeps
    them.
    """
    return (
        (case.model.is_moe and not case.stack.mixture_code.startswith("torchtitan-"))
        or (ATTENTION_FACTS[case.recipe.attention].is_flash and not _has_read_flex(case))
        or case.recipe.numerics.quantization in PREPACKED | {"int8"}
    )


def _samples_per_step(case: Case) -> int:
    batch = case.recipe.batch
    return int(batch.micro_batch * batch.grad_accum * case.scenario.batches_at_once)


RECIPE_RULES = (
    refuse(
        "method-against-quantization",
        "The method names one quantisation and quantization another: use method lora with the one "
        "that is meant",
        _contradicts_method,
        _contradiction_text,
    ),
    refuse(
        "quantized-full",
        "A quantised base cannot be trained in full, only adapters over it: use lora, or quantization none",
        lambda case: case.recipe.method == "full" and case.numerics.quantization != "none",
    ),
    refuse(
        "lora-options-with-full",
        "LoRA options mean nothing in a full fine-tune: leave them out, or use method lora",
        lambda case: case.recipe.method == "full" and bool(_lora_fields_said(case)),
        lambda case: ", ".join(_lora_fields_said(case)),
    ),
    refuse(
        "modules-to-save-with-full",
        "A full fine-tune trains every module, so modules_to_save means nothing there: leave it out",
        lambda case: case.recipe.method == "full" and "modules_to_save" in case.given,
    ),
    refuse(
        "double-quant-without-4bit",
        "Double quantisation exists for nf4 and fp4 bases only",
        lambda case: case.numerics.double_quant and case.numerics.quantization not in _FOUR_BIT,
        lambda case: f"this base is '{case.numerics.quantization}'",
    ),
    not_modelled(
        # ms-swift 3.12.6 and 4.6.0 base_args/quant_args.py: bnb_4bit_compute_dtype is float32 then.
        "four-bit-computes-in-fp32",
        "4-bit matrices of a checkpoint that is not bf16 compute in fp32 here; use --load-dtype bf16",
        _computes_in_fp32,
    ),
    refuse(
        "quant-storage-without-4bit",
        "quant_storage is the dtype that holds nf4 and fp4 bytes; other bases have none",
        lambda case: case.numerics.quant_storage is not None and case.numerics.quantization not in _FOUR_BIT,
        lambda case: f"this base is '{case.numerics.quantization}'",
    ),
    warn(
        "load-dtype-over-quantized",
        "Over a quantised base load_dtype reaches only what is not quantised: token table, head and norms",
        lambda case: case.numerics.quantization != "none" and "load_dtype" in case.given,
    ),
    not_modelled(
        "model-newer-than-stack",
        "Transformers 4 has no class for this model: use a --stack with version 5, such as trl",
        lambda case: lacks_model(case.stack, case.model),
        lambda case: f"{case.model.decoder or case.model.architecture}, in a stack of {case.stack.id}",
    ),
    warn(
        # transformers 4.39.0 to 4.57 and 5.23, as read for kbit_waits_on_host.
        "packed-base-loaded-whole",
        "Transformers 5 loads a quantised base whole onto each GPU before FSDP divides it; --stack trl@0.24 "
        "keeps it in host RAM",
        lambda case: (
            case.recipe.uses_fsdp
            and case.numerics.quantization in ("nf4", "fp4", "int8")
            and case.stack.model_code.startswith("transformers")
            and not case.stack.kbit_waits_on_host
            and minor_of_transformers_4(case.stack) is None
        ),
    ),
    warn(
        "weights-below-precision",
        "Precision fp32 means no autocast: weights loaded in 16 bits are trained in 16 bits; --load-dtype "
        "fp32 trains in fp32",
        lambda case: (
            case.numerics.precision == "fp32"
            and "precision" in case.given
            and "load_dtype" not in case.given
            and case.numerics.quantization == "none"
            and case.numerics.load_dtype != "fp32"
        ),
        lambda case: f"load_dtype is {case.numerics.load_dtype}",
    ),
    warn(
        "fused-experts-not-quantized",
        "bitsandbytes skips the fused expert tensors of this stack, so most of the model stays in 16 or 32 "
        "bits",
        lambda case: case.stack.quantizes_experts == "never" and _fused_expert_bytes(case) > 0,
        lambda case: format_gib(_fused_expert_bytes(case)),
    ),
    warn(
        # transformers 5.23 integrations/bitsandbytes.py replace_with_bnb_linear: type(module) is nn.Linear.
        "own-linears-not-quantized",
        "With Transformers 5 bitsandbytes skips linear layers of a model's own class: this one stays in 16 "
        "or 32 bits; --stack hf-trainer@4 quantises it",
        lambda case: (
            case.numerics.quantization in BITSANDBYTES
            and case.stack.passes_over != "nothing"
            and any(
                linear.kind == "subclass" and linear.group != "router" for linear, _ in case.model.linears()
            )
        ),
    ),
    warn(
        "fused-experts-adapted",
        "PEFT copies each fused expert tensor it adapts, for backward: --lora-targets attention avoids it",
        lambda case: adapted_expert_bytes(case) > 0 and case.stack.mixture_code != "scattermoe",
        lambda case: f"{format_gib(adapted_expert_bytes(case))}; with checkpointing one layer's",
    ),
    refuse(
        "fp16-gradients",
        "fp16 loss scaling refuses trained weights that are fp16 themselves: load or keep them in fp32, or "
        "use bf16-mixed",
        _fp16_gradients,
    ),
    refuse(
        "targets-match-nothing",
        "No matrix of the model has a name in lora_targets",
        _all_targets_unmatched,
        _unmatched_targets_text,
    ),
    refuse(
        "targets-name-a-part",
        "PEFT stops: it adapts matrices that one expert tensor has replaced together or not at all; name all "
        f"of them, or none [{REFUSED_BY_TOOL}]",
        lambda case: bool(_part_of_experts(case)),
        lambda case: ", ".join(_part_of_experts(case)),
    ),
    warn(
        "targets-match-partly",
        "Some names in lora_targets match no matrix and add nothing",
        lambda case: bool(_strange(case)) and not _all_targets_unmatched(case),
        _unmatched_targets_text,
    ),
    refuse(
        # peft 0.21.2 utils/other.py fsdp_auto_wrap_policy: an adapted table stays in the root's flat
        # parameter, which has one dtype (torch 2.13 fsdp/_flat_param.py _validate_tensors_to_flatten).
        "table-adapted-under-fsdp1",
        "FSDP1 stops where the token table has adapters of another dtype than its own; leave its name out of "
        f"lora_targets, or use --sharding fsdp2 [{REFUSED_BY_TOOL}]",
        _mixes_dtypes_in_root,
    ),
    warn(
        "token-table-adapted",
        "Adapters of the token table are not counted",
        _adapts_table,
        _table_adapter_text,
    ),
    warn(
        "modules-to-save-unmatched",
        "Some names in modules_to_save are neither a matrix nor the token table and are counted as nothing",
        lambda case: (
            case.adapter is not None and bool(unmatched_modules(case.model, case.adapter.modules_to_save))
        ),
        _unmatched_modules_text,
    ),
    refuse(
        # peft 0.21 tuners/lora/layer.py ParamWrapper raises for a dropout.
        "parameter-targets",
        "Adapters on parameters (param:) need experts that are one tensor, as Transformers 5 has them, not "
        "packed in 4 bits, and lora_dropout 0",
        lambda case: _targets_parameters(case) and (_packs_parameters(case) or _dropout(case) > 0),
        lambda case: f"{case.stack.id}, {case.numerics.quantization}, dropout {_dropout(case):g}",
    ),
    warn(
        "rank-above-width",
        "A LoRA rank above the width of the model costs more than the matrices it stands for",
        lambda case: case.adapter is not None and bool(case.adapter.rank > case.model.hidden_size),
        lambda case: f"the width of {case.model.id} is {case.model.hidden_size:,}",
    ),
    refuse(
        "tokens-above-sequence",
        "A sample cannot have more real tokens than the sequence length: lower "
        "tokens_per_sample or raise seq",
        lambda case: bool(case.recipe.batch.tokens_per_sample > case.recipe.batch.seq_len),
        lambda case: f"{case.recipe.batch.tokens_per_sample:g} against {case.recipe.batch.seq_len:g}",
    ),
    warn(
        "packed-with-sample-length",
        "Packed sequences are full whatever the samples' length, so tokens_per_sample changes neither "
        "memory nor step time",
        lambda case: case.recipe.batch.padding == "packed" and "tokens_per_sample" in case.given,
    ),
    refuse(
        "sequence-above-table",
        "The model looks positions up in a table, and the sequence is longer than the table: lower seq",
        lambda case: _too_long(case) and _learned_positions(case),
        _length_text,
    ),
    warn(
        "sequence-above-model",
        "The sequence is longer than the model was made for: it runs, but on positions never trained",
        lambda case: _too_long(case) and not _learned_positions(case),
        _length_text,
    ),
    warn(
        "reentrant-without-checkpointing",
        "checkpoint_reentrant means nothing without gradient checkpointing",
        lambda case: "checkpoint_reentrant" in case.given and not case.recipe.gradient_checkpointing,
    ),
    warn(
        "checkpoint-every-without-checkpointing",
        "checkpoint_every and checkpoint_policy mean nothing without gradient checkpointing",
        lambda case: (
            bool({"checkpoint_every", "checkpoint_policy"} & set(case.given))
            and not case.recipe.gradient_checkpointing
        ),
    ),
    not_modelled(
        "checkpoint-every-with-offload",
        "Activations in host RAM are not modelled where only some layers are checkpointed; use "
        "--checkpoint-every 1",
        lambda case: case.recipe.rebuilds_some and case.recipe.offloads_activations,
    ),
    not_modelled(
        "activations-offload-without-checkpointing",
        "With this stack activations in host RAM are modelled with gradient checkpointing only; add"
        " --gradient-checkpointing",
        # torchtune 0.6 (recipes) refuses it, Unsloth has no other kind.
        lambda case: case.recipe.saves_on_host and not case.scenario.stack.offloads_saved,
    ),
    refuse(
        "selective-reentrant",
        "Reentrant checkpointing keeps no outputs of operators; use --no-checkpoint-reentrant or "
        "--checkpoint-policy full",
        lambda case: (
            _selects(case) and (case.recipe.checkpoint_reentrant or case.scenario.stack.checkpoints_parts)
        ),
    ),
    not_modelled(
        "selective-of-kernels",
        "Selective checkpointing of operators is modelled over unquantised or 4-bit weights, with sdpa or "
        "eager attention, of torchtitan also with flex and experts; use --checkpoint-policy full",
        lambda case: _selects(case) and _has_unknown_operators(case),
    ),
    refuse(
        "packed-head-in-pieces",
        "This stack packs the head in 4 bits, and a loss that multiplies by its weight in pieces would "
        "read packed bytes; use --loss hf",
        lambda case: (
            case.recipe.loss != "hf"
            and case.stack.quantizer == "lightning"
            and case.numerics.quantization != "none"
        ),
        lambda case: f"{case.stack.id}, {case.recipe.loss}",
    ),
    refuse(
        "adapted-head-in-pieces",
        "A loss that multiplies by the head in pieces reads its weight alone, so an adapter of the head is "
        "not trained; use --loss hf, or leave the head out of --lora-targets",
        lambda case: case.recipe.loss != "hf" and adapts_head(case),
        lambda case: f"{case.recipe.loss}, {case.model.head.name}",
    ),
    refuse(
        "checkpoint-every-of-parts",
        "A stack that checkpoints the parts of a layer one by one does so in every layer; use "
        "--checkpoint-every 1",
        lambda case: case.recipe.rebuilds_some and case.scenario.stack.checkpoints_parts,
    ),
    warn(
        "fewer-samples-than-a-step",
        "The whole run has fewer samples than one optimizer step takes",
        lambda case: (
            case.scenario.run.n_samples is not None and case.scenario.run.n_samples < _samples_per_step(case)
        ),
        lambda case: f"{case.scenario.run.n_samples} samples, a step takes {_samples_per_step(case)}",
    ),
)
