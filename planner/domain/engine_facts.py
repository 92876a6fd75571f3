"""What a stack's engines do, DeepSpeed, DDP, FSDP and Megatron: the part of its facts that is theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planner.domain.stack_values import (
    AdamStates,
    Fsdp2Units,
    MainGradients,
    Zero12Upload,
    ZeroQuantized,
)


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Switches of one software stack; see :class:`planner.domain.stack.Stack`."""

    # DeepSpeed
    zero_auto_buckets: bool
    """ZeRO bucket sizes follow hidden_size (Hugging Face ``auto``) instead of DeepSpeed's defaults."""
    zero3_bucket_elements: int
    zero3_prefetch_elements: int
    zero3_persistence_elements: int
    """Bucket, prefetch bucket and persistence threshold of stage 3; -1: as ``zero_auto_buckets`` says."""
    zero3_live_elements: int
    zero3_reuse_elements: int
    zero3_sub_group_elements: int
    """No prefetch while more are whole; used again within so many stays whole; updated at a time."""
    zero12_bucket_elements: int
    """Bucket of stages 1 and 2 as the stack's template sets it; 0: hidden squared, Hugging Face ``auto``."""
    zero12_overlap: bool
    zero3_overlap: bool
    """``overlap_comm``: stages 1 and 2 take a second bucket, stage 3 gathers and reduces in other streams."""
    zero_sums_fp32: Literal["never", "divided_sequences", "always"]
    """Where ZeRO casts gradients of 16 bits to fp32 for their sums: where it divides sequences
    (``seq_parallel_communication_data_type``), or everywhere (``communication_data_type``)."""
    zero3_quantized: ZeroQuantized
    """What stage 3 sends in 8 bits (weights) or 4 (gradients between nodes): ``zero_quantized_weights``,
    ``zero_quantized_gradients`` of ZeRO++."""
    autotp: Literal["unread", "by_plan"]
    """How DeepSpeed divides matrices (``autotp_size``): by the plan that Transformers has for the model."""
    zero3_leaves: tuple[str, ...]
    """Classes whose modules stage 3 gathers whole, with all that is inside of them (leaf modules): of layers,
    of mixtures of experts, or of all experts; those of other models change nothing.  ``none``: no class."""
    zero3_quantizes_frozen: bool
    """Parts of weights that are frozen when they are divided are kept in 8 bits
    (``zero_quantized_nontrainable_weights``); those of Transformers are frozen later."""
    zero12_early_buckets: bool
    """These buckets are made before the backward of the loss begins, so that they lie beside its logits."""
    zero12_flattens_on_gpu: bool
    """Trained weights of stages 1 and 2 become one flat buffer on the GPU where it has room, not the host."""
    zero12_engine: Literal["deepspeed", "low_level"]
    """Whose code divides states and gradients in stages 1 and 2: DeepSpeed's, or that of Colossal-AI."""
    zero1_update: Literal["gathered", "broadcast", "broadcast_in_node"]
    """How stage 1 spreads updated weights: parts are gathered; or owners broadcast, to all or to a node."""
    zero12_upload: Zero12Upload
    """Updated weights return cast on the host, as fp32 on the GPU, or by a 16-bit host buffer."""
    pins_offload: bool
    """What DeepSpeed offloads is in pinned host memory (``pin_memory``)."""
    pins_masters: Literal["never", "as_set", "always"]
    """Whether that goes for the fp32 masters of stages 1 and 2 too."""
    zero3_casts_adapters: bool
    """Stage 3 casts adapters to 16 bits that PEFT made in fp32."""
    zero3_divides_fp32: bool
    """Stage 3 divides a base that is not packed in fp32, because nothing has told it of 16 bits by then."""
    zero3_keeps_recomputed: bool
    """Frozen parameters gathered for a recomputation stay whole until the backward of its first module."""
    recomputes_hooks: bool
    """Hooks run in what is recomputed; a reentrant recomputation begins in the backward of the model."""
    zero3_waits_for_copies: bool
    zero3_casts_on_host: bool
    """Where stage 3 offloads the optimizer, the host waits for each gradient's copy; it makes it fp32."""
    zero3_hooks_into_copies: bool
    zero3_counts_from_backward: bool
    """Parameters are copied to get hooks; what is released after a backward allows as much more prefetch."""

    # DDP and FSDP
    ddp_finds_unused: Literal["never", "unless_checkpointed", "full_unless_checkpointed", "always"]
    """Whether DDP looks for parameters that a step did not use.  ``unless_checkpointed``: where there are
    adapters or no checkpointing (the Trainer); ``full_unless_checkpointed``: never with adapters."""
    fsdp_units: Literal["layer", "feed_forward"]
    """What is gathered at a time: a layer, or its feed-forward part, beside which the root has the rest."""
    fsdp_layer_class: str
    """The class of layers that FSDP is to wrap, where a file names one of another architecture."""
    tower_units: Literal["as_listed", "layers", "in_root"]
    """Layers of a vision tower are units of FSDP, or the root's: by Transformers' list, or as a file says."""
    has_fsdp1: bool
    """Its own code, or what it runs through, has the first FSDP, too."""
    fsdp1_flat: bool
    """The optimizer has the flat parameters of FSDP1, not those of the model (``use_orig_params``)."""
    fsdp1_prefetches: bool
    """In backward FSDP1 gathers the unit before while a layer computes (``backward_prefetch``)."""
    fsdp1_wraps_adapters: bool
    """Adapters are units of FSDP1 by themselves; else they lie in one flat parameter with frozen weights."""
    fsdp2_root_stays: bool
    """FSDP2 keeps what is the root's whole after the forward pass, whatever it is told."""
    fsdp2_units: Fsdp2Units
    """``ends_apart``: last norm and head are a unit that stays whole.  ``ends_in_root``: they are the
    root's, which is divided again when the model returns, and each matrix of an adapter is a unit;
    ``root_divided``: the table, too; ``all_in_root``: so, but adapters lie with their layers.
    ``root_whole``: the root has all around the layers, and stays whole, as the last layer does.
    ``..._returned``: all is divided before a loop takes the loss of logits."""
    fsdp2_parts_tied: bool
    """FSDP2 gathers and reduces a head beside the token table that it is; the optimizer has one of them."""
    fsdp_no_sync: Literal["neither", "fsdp1", "both"]
    """Which FSDP reduces gradients in the last micro-step only: they stay whole until then."""
    fsdp2_widens: bool
    """FSDP2 divides trained 16-bit weights as fp32 in mixed precision."""
    fsdp2_casts: Literal["always", "undivided", "never"]
    """FSDP2 casts weights as it gathers them; ``undivided``: unless matrices are divided.  Then it is
    Transformers' own, which divides weights while it reads them, and autocast casts."""
    fsdp2_divides_int8: bool
    """FSDP2 knows int8 matrices of bitsandbytes, which it divides as they are."""
    fsdp_reduces_fp32: bool
    """FSDP2 reduces 16-bit gradients in fp32."""

    # Megatron
    main_gradients: MainGradients
    """Dtype of the buffers in which Megatron sums gradients from the first micro-batch on."""
    adds_gradients: bool
    """Megatron's products add a weight's gradient to its buffer (``gradient_accumulation_fusion``); else it
    is a tensor until a hook adds it."""
    divides_experts: bool
    """Features of experts are divided as other matrices are where nothing is said; Megatron's own default."""
    pads_latent_values: bool
    """Latent attention of Megatron is mcore-bridge's for packed rows, the one that was read; it pads values
    to the width of keys."""
    exchanges_heads: bool
    """GPUs that divide sequences under Megatron exchange tokens for heads (``cp_comm_type: a2a``); else keys
    and values pass in a ring."""
    recomputes_attention: bool
    """Where Megatron computes no whole layers again, it does so with attention's kernel (``core_attn``)."""
    adam_states: AdamStates
    """What Megatron's Adam keeps of a weight: a master and moments in fp32, or (``precise``, its
    precision-aware optimizer) the 16 bits that bf16 leaves out of a master, and moments in fp32 or bf16."""
    whole_masters: bool
    """Masters of weights that it keeps in 8 bits are whole on each GPU: the checkpoint was in FP8."""
