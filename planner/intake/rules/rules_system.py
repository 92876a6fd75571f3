"""Rules about sharding, offload, cards, kernels and stacks."""

from __future__ import annotations

from planner.domain.recipes.attention_kernels import ATTENTION_FACTS, ATTENTIONS, FLASH_WIDEST, Attention
from planner.domain.recipes.recipe import DTYPE_BYTES
from planner.domain.uncertainty.calibration import lengths_of
from planner.errors import REFUSED_BY_TOOL
from planner.intake.rules.rule import Case, Rule, not_modelled, refuse, warn
from planner.intake.supported import (
    cannot_step,
    code_lacks,
    has_own_adamw,
    has_sinks,
    lacks_bf16,
    lacks_flash2,
    refuses_flash,
    widest_head,
)
from planner.units import MIB, format_gib

# A mask below this is no reason for another kernel.
_WORTH_BYTES = 64 * MIB
# GPUs that switches of NVLink join: those of DGX-2, and of GB200 and GB300 NVL72.
_MOST_OF_A_NODE, _MOST_OF_A_RACK = 16, 72


def _sample_mask_bytes(case: Case) -> int:
    """Bytes of the mask that keeps packed samples apart, in the compute dtype."""
    batch, stack = case.recipe.batch, case.stack
    # One sample fills a sequence that GPUs divide.
    if not stack.masks_samples(case.recipe) or case.recipe.parallel.context > 1:
        return 0
    tokens = batch.rows * batch.seq_len
    keys = tokens if stack.joins_rows(case.recipe) else batch.seq_len
    return int(tokens * keys) * DTYPE_BYTES[case.numerics.compute_dtype]


def _above_a_node(case: Case) -> bool:
    most = _MOST_OF_A_RACK if case.gpu.id in ("gb200", "gb300") else _MOST_OF_A_NODE
    return bool(case.hardware.gpus_per_node > most)


def _needs_an_engine(case: Case) -> bool:
    return case.recipe.offloads_optimizer or case.recipe.offloads_params


def _is_divided_litgpt(case: Case) -> bool:
    return case.stack.quantizer == "lightning" and case.hardware.world_size > 1


def _rates_unknown(case: Case) -> bool:
    gpu = case.gpu
    rates = gpu.bf16_flop_per_s, gpu.fp16_flop_per_s, gpu.fp32_flop_per_s
    return gpu.memory_bandwidth_bytes_per_s is None or not any(rates)


def _reserved_fills_card(case: Case) -> bool:
    visible = case.gpu.visible_memory_bytes
    return visible is not None and case.hardware.gpu_reserved_bytes >= visible


def _above_label(case: Case) -> bool:
    visible, label = case.gpu.visible_memory_bytes, case.gpu.marketing_memory_bytes
    return visible is not None and label is not None and visible > label


def _makes_scores(case: Case) -> bool:
    shapes = [group.block.attention for group in case.model.groups]
    grouped = any(each.sdpa_input == "grouped" and each.n_kv_heads < each.n_heads for each in shapes)
    as_given = case.stack.copies_kv_heads in ("none", "wide") and not case.stack.tells_samples(case.recipe)
    hands_over = as_given and not case.stack.masks_padding(case.recipe.batch)
    no_flash = lacks_flash2(case.gpu) or case.numerics.compute_dtype == "fp32"
    return no_flash and case.recipe.attention == "sdpa" and grouped and hands_over


def _divides_fp32(case: Case) -> bool:
    return case.stack.zero3_divides_fp32 and case.recipe.sharding.is_zero3


def _hands_fp32_to_flash(case: Case) -> bool:
    today = case.stack.model_code == "transformers-5"
    return _divides_fp32(case) and today and case.recipe.attention == "flash2"


def _is_plain_lora(case: Case) -> bool:
    """Whether adapters are as in the dry runs that were compared; checkpoints that are not reentrant end with
    an error there, for what they compute again is divided by then.
    """
    recipe, adapter = case.recipe, case.recipe.adapter
    plain = adapter is not None and adapter.is_plain and not adapter.modules_to_save
    again = recipe.checkpoint_reentrant or not recipe.gradient_checkpointing
    return plain and again and case.stack.adapter_kernels == "eager"


def _divides_unread_fp32(case: Case) -> bool:
    recipe = case.recipe
    compared = recipe.method == "full" or _is_plain_lora(case)
    compared = compared and recipe.task in ("sft", "pretrain")
    compared = compared and recipe.offload == "none" and recipe.attention in ("sdpa", "eager")
    return _divides_fp32(case) and not compared and not _hands_fp32_to_flash(case)


def _trains_16_bits(case: Case) -> bool:
    if case.adapter is not None:
        return case.adapter.dtype != "fp32"
    return case.numerics.load_dtype != "fp32" and not case.stack.trainable_fp32


def _of_flash(name: Attention) -> tuple[Rule, ...]:
    """What a kernel that is called like FlashAttention 2 does not take."""
    title = ATTENTION_FACTS[name].title
    return (
        refuse(
            f"{name}-on-old-card",
            f"{title} needs a GPU of compute capability 8.0 or later: use sdpa",
            lambda case: case.recipe.attention == name and lacks_flash2(case.gpu),
            lambda case: f"{case.gpu.name} has {case.gpu.compute_capability}",
        ),
        refuse(
            f"{name}-in-fp32",
            f"{title} computes in fp16 and bf16 only: use sdpa, or a 16-bit precision [{REFUSED_BY_TOOL}]",
            lambda case: case.recipe.attention == name and case.numerics.compute_dtype == "fp32",
        ),
        refuse(
            f"{name}-wide-heads",
            f"{title} takes heads of at most {FLASH_WIDEST} features: use sdpa",
            lambda case: (
                case.recipe.attention == name
                and widest_head(case.model) > FLASH_WIDEST
                and not case.stack.masks_wide_heads
            ),
            lambda case: f"{case.model.id} has heads of {widest_head(case.model)}",
        ),
    )


SYSTEM_RULES = (
    warn(
        "version-not-read",
        "A package has a version that was not read, so that of the nearest older one stands in",
        lambda case: bool(case.stack.unread),
        lambda case: "; ".join(case.stack.unread),
    ),
    warn(
        # torch 2.11 ATen/native/cudnn/MHA.cpp keeps plans by shape; modelscope/FunASR#3704: 0.44 s forward
        # and 0.55 s backward for each new one on a B200.
        "plan-for-each-shape",
        "cuDNN's attention plans for each new length of a batch, which may take a second or more and is not "
        "counted: TORCH_CUDNN_SDPA_DEPRIORITIZED=1 takes FlashAttention in its place",
        lambda case: case.scenario.runs_cudnn and lengths_of(case.scenario) == "natural",
    ),
    warn(
        "sharding-on-one-process",
        "ZeRO and FSDP on one process divide nothing; without offload they only change dtypes and buffers",
        lambda case: (
            case.hardware.world_size == 1
            and (case.recipe.uses_deepspeed or case.recipe.uses_fsdp)
            and case.recipe.offload in ("none", "activations")
        ),
    ),
    warn(
        "many-gpus-in-a-node",
        "More GPUs than one node has: use --nodes, else no network is counted between them",
        _above_a_node,
        lambda case: f"{case.hardware.gpus_per_node:,}",
    ),
    warn(
        "many-gpus-without-ddp",
        "Several GPUs with sharding none are not one job: use ddp (the Trainer would use nn.DataParallel, "
        "which is not modelled)",
        lambda case: (
            case.hardware.world_size > case.recipe.parallel.gpus and not case.recipe.sharding.communicates
        ),
    ),
    warn(
        "hsdp-on-one-node",
        "hsdp shards inside a node and replicates across nodes, so on one node it is fsdp; --replicas says "
        "another number of copies",
        lambda case: case.recipe.sharding.scope == "node" and case.recipe.copies(case.hardware) == 1,
    ),
    refuse(
        # transformers 5.16 integrations/flash_attention.py get_target_dtype takes the dtype of the gathered
        # weight, which is fp32 in a dry run of axolotl 0.19.0 with its zero3.json, where no autocast is on;
        # flash-attn 2.8.3 csrc/flash_attn/flash_api.cpp mha_fwd and mha_varlen_fwd check for 16 bits.
        "fp32-shards-to-flash",
        "Weights that ZeRO-3 divides before it knows their dtype stay in fp32, and FlashAttention stops at "
        "queries in fp32: say bf16: {enabled: true} in the DeepSpeed file, or attn_implementation: sdpa "
        f"[{REFUSED_BY_TOOL}]",
        _hands_fp32_to_flash,
    ),
    not_modelled(
        # Its dry runs were compared for full fine-tuning and plain adapters.
        "fp32-shards-unread",
        "Weights that ZeRO-3 divides before it knows their dtype stay in fp32, which is modelled for plain "
        "jobs alone (no fused kernels, no offload): say bf16: {enabled: true} in the DeepSpeed file",
        _divides_unread_fp32,
    ),
    warn(
        "epochs-without-samples",
        "Passes over the samples say how long a run takes only beside their number: add --samples",
        lambda case: (
            case.scenario.run.n_samples is None
            and "epochs" in case.given
            and case.given["epochs"].origin == "cli"
        ),
    ),
    refuse(
        "replicas-without-hsdp",
        "replicas are copies of what hsdp divides: use --sharding hsdp",
        lambda case: case.recipe.parallel.replicas is not None and case.recipe.sharding.scope != "node",
        lambda case: f"sharding is {case.recipe.sharding}",
    ),
    warn(
        "nf4-sharded-without-storage",
        "4-bit weights stay whole on every GPU under ZeRO-3 and FSDP unless quant_storage names a dtype "
        "that can be divided",
        lambda case: (
            case.shards_weights
            and case.numerics.quantization in ("nf4", "fp4")
            and case.numerics.quant_storage is None
        ),
    ),
    refuse(
        "zero-without-masters",
        "DeepSpeed keeps fp32 masters beside 16-bit weights: with ZeRO say bf16-mixed, fp16-mixed or fp32",
        lambda case: case.recipe.uses_deepspeed and case.numerics.precision in ("bf16", "fp16"),
    ),
    not_modelled(
        # deepspeed 0.19.8 runtime/engine.py communication_data_type and get_data_types: gradients of 16 bits
        # are sent in fp32, and stage 1 sums them in tensors of their own.
        "zero-trains-16-bits-unread",
        "Trained weights in 16 bits are not modelled where DeepSpeed's file turns on neither bf16 nor fp16: "
        "use --precision bf16-mixed, or --load-dtype fp32",
        lambda case: (
            case.recipe.uses_deepspeed and case.numerics.precision == "fp32" and _trains_16_bits(case)
        ),
        lambda case: f"sharding {case.recipe.sharding}",
    ),
    refuse(
        "offload-without-engine",
        "Only ZeRO and FSDP offload optimizer or parameters: use zero2, zero3 or fsdp",
        lambda case: _needs_an_engine(case) and not case.recipe.sharding.divides_optimizer,
    ),
    refuse(
        "params-offload-below-stage-3",
        "ZeRO offloads parameters in stage 3 only: use zero3, or offload optimizer",
        lambda case: case.recipe.offloads_params and case.recipe.sharding.is_zero12,
    ),
    refuse(
        "nvme-without-stage-3",
        "Offload to NVMe exists in ZeRO-3 only",
        lambda case: (
            case.recipe.offloads_to_nvme and (case.recipe.uses_fsdp or case.recipe.sharding.is_zero12)
        ),
    ),
    refuse(
        "fsdp-offloads-both",
        "FSDP offloads parameters and optimizer together: use optimizer+params",
        lambda case: (
            case.recipe.uses_fsdp
            and not case.recipe.offloads_to_nvme
            and case.recipe.offloads_optimizer != case.recipe.offloads_params
        ),
    ),
    refuse(
        "fsdp1-not-in-stack",
        "This stack has FSDP2 alone: use --sharding fsdp, or hsdp",
        lambda case: case.recipe.sharding.is_fsdp1 and not case.stack.has_fsdp1,
        lambda case: f"{case.recipe.sharding}, {case.stack.id}",
    ),
    refuse(
        # litgpt 0.5.13 finetune/lora.py:151-157; lora_legacy.py, adapter.py and adapter_v2.py alike.
        "litgpt-divides-no-packed-base",
        f"LitGPT stops at --quantize on several GPUs: use --gpu X:1, or --method lora [{REFUSED_BY_TOOL}]",
        lambda case: _is_divided_litgpt(case) and case.numerics.quantization != "none",
    ),
    not_modelled(
        # litgpt 0.5.13 finetune/lora.py parallelize_fn (the root stays whole), validate (logits of a batch at
        # once); full.py (FSDPStrategy, no pieces of the head's product).
        "litgpt-on-several-gpus",
        "LitGPT divides a job over several GPUs by FSDP, with its own units and evaluation: modelled is the "
        "first FSDP with adapters alone; use --gpu X:1, or --stack torchtune",
        lambda case: (
            _is_divided_litgpt(case) and not (case.recipe.sharding.is_fsdp1 and case.adapter is not None)
        ),
        lambda case: f"{case.recipe.method}, {case.recipe.sharding}",
    ),
    refuse(
        # litgpt 0.5.13 finetune/lora.py parallelize_fn, which one GPU does not call; full.py FSDPStrategy.
        "litgpt-checkpoints-divided-jobs",
        "LitGPT checkpoints activations of jobs on several GPUs alone: use --no-gradient-checkpointing, or "
        "--stack torchtune",
        lambda case: (
            case.stack.quantizer == "lightning"
            and case.hardware.world_size == 1
            and case.recipe.gradient_checkpointing
        ),
    ),
    refuse(
        "deepspeed-elsewhere",
        "This stack divides jobs by its own code and has no DeepSpeed: use --sharding fsdp, or --stack "
        "hf-trainer",
        lambda case: case.recipe.sharding.engine == "deepspeed" and not case.stack.runs_deepspeed,
        lambda case: f"{case.stack.id}, {case.recipe.sharding}",
    ),
    refuse(
        "distributed-optimizer-elsewhere",
        "The distributed optimizer is Megatron-Core's: use --stack megatron, or --sharding zero1",
        lambda case: (
            case.recipe.sharding.engine == "megatron-core" and case.stack.model_code != "megatron-core"
        ),
        lambda case: case.stack.id,
    ),
    not_modelled(
        "whole-weights-accumulate",
        "FSDP1 that keeps weights whole gives nothing back until gradients are reduced, which is not "
        "modelled over several micro-batches; use --sharding fsdp1, or --grad-accum 1",
        lambda case: (
            case.recipe.sharding.is_fsdp1
            and not case.recipe.sharding.divides_weights
            and case.recipe.sharding.reduces_last_only(case.stack.fsdp_no_sync)
            and bool(case.recipe.batch.grad_accum > 1)
        ),
    ),
    refuse(
        "optimizer-on-dtensors",
        "FSDP2 gives the optimizer DTensors, which only torch's own can step: use adamw_torch or sgd, or "
        "shard by fsdp1 or ZeRO",
        lambda case: cannot_step(case.recipe.optimizer, case.recipe.sharding),
        lambda case: f"the optimizer here is {case.recipe.optimizer}",
    ),
    refuse(
        "adamw-hf-gone",
        "Transformers has no AdamW of its own since 4.50: use adamw_torch, or a --stack with an older one, "
        f"such as hf-trainer@4 [{REFUSED_BY_TOOL}]",
        lambda case: case.recipe.optimizer == "adamw_hf" and not has_own_adamw(case.stack),
        lambda case: f"the stack here is {case.stack.id}",
    ),
    warn(
        "offload-host-unknown",
        "Host RAM must suffice, too, and its size is not known: give --host-memory",
        lambda case: (
            (_needs_an_engine(case) or case.stack.host_experts != "none")
            and case.hardware.host.memory_bytes is None
        ),
    ),
    warn(
        "bf16-without-units",
        "The card has no bf16 units: it emulates bf16 slowly or refuses it; fp16-mixed is what runs there",
        lambda case: lacks_bf16(case.gpu) and case.numerics.compute_dtype == "bf16",
        lambda case: f"{case.gpu.name}, compute capability {case.gpu.compute_capability}",
    ),
    warn(
        # torch 2.13 sdp_utils.cpp: without FlashAttention no fused kernel takes fewer heads of keys; repeated
        # keys would suit one (transformers 5.23 integrations/sdpa_attention.py use_gqa_in_sdpa).
        # Seen on a T4: https://github.com/huggingface/transformers/pull/45776.
        "grouped-heads-unfused",
        "Torch takes grouped heads neither in fp32 nor without FlashAttention, and scores all pairs; "
        "Transformers before 4.54 (--versions) and --stack unsloth copy them",
        _makes_scores,
        lambda case: f"{case.gpu.name}, {case.numerics.compute_dtype}",
    ),
    *(rule for name in ATTENTIONS if ATTENTION_FACTS[name].is_flash for rule in _of_flash(name)),
    refuse(
        "kernel-refused",
        f"Transformers refuses FlashAttention for this model: use eager [{REFUSED_BY_TOOL}]",
        lambda case: refuses_flash(case.model, case.stack, case.recipe.attention),
        lambda case: case.model.id,
    ),
    refuse(
        "kernel-not-in-model-code",
        "The model's code in this stack has no such attention kernel: use eager",
        lambda case: code_lacks(case.model, case.stack, case.recipe.attention),
        lambda case: f"{case.recipe.attention} for {case.model.architecture} in {case.stack.id}",
    ),
    warn(
        "backward-without-sinks",
        "vLLM's FlashAttention 3 runs here, whose backward leaves the sinks out: gradients are not exact, "
        "and eager attention's are",
        lambda case: case.recipe.attention == "flash2" and has_sinks(case.model),
    ),
    warn(
        "packed-samples-masked",
        "Attention keeps packed samples apart by a mask of all pairs of tokens; flash2 needs none",
        lambda case: _sample_mask_bytes(case) >= _WORTH_BYTES,
        lambda case: (
            f"{format_gib(_sample_mask_bytes(case))} in each layer (--attention {case.recipe.attention})"
        ),
    ),
    warn(
        "attention-of-remote-code",
        "The model's code comes with the checkpoint and picks its own attention kernel, which may not be "
        "the one given",
        lambda case: case.model.remote_code and "attention" in case.given,
    ),
    warn(
        "not-a-cuda-device",
        "The memory formulas describe PyTorch's CUDA allocator, so on another device there is no verdict",
        lambda case: not case.gpu.is_cuda,
        lambda case: case.gpu.name,
    ),
    warn(
        "gpu-memory-unknown",
        "How much memory this device makes visible is not known, so there is no memory "
        "verdict: give --gpu-memory",
        lambda case: case.gpu.is_cuda and case.gpu.visible_memory_bytes is None,
        lambda case: case.gpu.name,
    ),
    warn(
        "shared-with-the-host",
        "GPU and CPU of this device share one memory: give with gpu_reserved what the host needs, because "
        "it comes off the GPU's",
        lambda case: case.gpu.unified_memory and not case.hardware.gpu_reserved_bytes,
        lambda case: case.gpu.name,
    ),
    warn(
        "gpu-speed-unknown",
        "The compute or memory rate of this device is not known, so there is no step time",
        _rates_unknown,
        lambda case: case.gpu.name,
    ),
    warn(
        "gpu-memory-above-label",
        "gpu_memory is more than the card is sold with",
        _above_label,
        lambda case: (
            f"{format_gib(case.gpu.visible_memory_bytes or 0)} against "
            f"{format_gib(case.gpu.marketing_memory_bytes or 0)}"
        ),
    ),
    refuse(
        "reserved-fills-card",
        "gpu_reserved leaves nothing of the card for the job",
        _reserved_fills_card,
        lambda case: (
            f"{format_gib(case.hardware.gpu_reserved_bytes)} of "
            f"{format_gib(case.gpu.visible_memory_bytes or 0)}"
        ),
    ),
)
