"""The words that facts of a software stack may have as values."""

from __future__ import annotations

from typing import Literal

KbitUpcast = Literal["none", "norms", "layers", "all", "recast"]
"""``recast``: TRL returns token table and head of a 4-bit base to 16 bits under bf16, and leaves out a base
that a sharding divides.
"""
CappedSdpa = Literal["refused", "asked", "default"]
"""Whether Transformers runs Gemma 2 with torch's kernel, which knows no caps: never, where that is asked for,
or unless another one is.
"""
DeviceMap = Literal["unread", "layer", "largest"]
EmptiesBeforeBackward = Literal["never", "first", "every"]
QuantizesExperts = Literal["never", "expanded", "held"]
FusedHeadNorms = Literal["none", "gemma4", "qwen3_too"]
GatedDelta = Literal["fused_norm", "repeated", "grouped"]
"""Keys that several heads of values share are ``grouped`` by the kernel, or ``repeated`` before it.
``fused_norm``: and the gated norm is a kernel of flash-linear-attention.
"""
PassedOver = Literal["parameters", "routers", "nothing"]
"""Which bare tensors k-bit quantisers leave as they are: all, or but for those of experts."""
FsdpNoSync = Literal["neither", "fsdp1", "both"]
LoaderReserves = Literal["nothing", "half", "stored"]
FsdpLoads = Literal["one_by_one", "whole", "shards"]
LoaderPlaces = Literal["kbit", "alone", "undivided"]
FrozenLayers = Literal["differentiated", "skipped", "entered", "spared", "unread"]
DoraBranch = Literal["unread", "keeps_eye", "drops_eye", "adapter_first"]
ExpertTargets = Literal["named", "converted", "undropped", "any"]
OftWrappers = Literal["unread", "twice", "apart", "alike"]
ENTERS: tuple[FrozenLayers, ...] = ("entered", "spared")
"""Values of ``frozen_layers`` that make inputs of trained, checkpointed layers require gradients."""
LogitsCopy = Literal[
    "compute",
    "float",
    "shifted",
    "turned",
    "log_softmax",
    "nll_grad",
    "log_softmax_grad",
    "compute_grad",
    "model_loss",
]
"""``turned``: the loop shifts its own variable, and its classes are the second dimension: the kernel of
log-softmax copies what it gets.  Source: torch 2.13 ATen/native/cuda/SoftMax.cu host_softmax."""
Fsdp2Units = Literal[
    "ends_apart", "ends_in_root", "root_divided", "root_whole", "root_returned", "ends_returned"
]
ADAPTERS_APART: tuple[Fsdp2Units, ...] = ("ends_in_root", "root_divided")
"""Values where each matrix of an adapter is a unit of its own."""
RETURNED: tuple[Fsdp2Units, ...] = ("root_returned", "ends_returned")
"""Values of ``fsdp2_units`` where all is divided again when the model returns logits to a loop's own loss."""
LigerSumsWide = Literal["never", "16-bit", "always"]
Linear4bitDtype = Literal["compute", "loaded", "fp16"]
Muon = Literal["unread", "matrices", "all", "gathers"]
"""``all``: it stops at tensors of three dimensions; of those that FSDP2 divides, GPUs exchange whole ones.
``gathers``: whole gradients of what FSDP2 divides; of the update each GPU gets its part, and AdamW steps
adapters."""
ModelCode = Literal["transformers-4", "transformers-5", "own", "megatron-core"]
MainGradients = Literal["fp32", "bf16"]
AdamStates = Literal["masters", "precise", "precise_bf16"]
PinsMasters = Literal["never", "as_set", "always"]
PinsInputs = Literal["never", "if_room", "always"]
Zero12Engine = Literal["deepspeed", "low_level"]
Zero1Update = Literal["gathered", "broadcast", "broadcast_in_node"]
Zero12Upload = Literal["cast_on_host", "fp32_on_gpu", "buffer_on_host"]
AdapterKernels = Literal["eager", "in_place", "compiled", "fused_apart", "fused", "fused_dropped"]
FUSED_KERNELS: tuple[AdapterKernels, ...] = ("fused_apart", "fused", "fused_dropped")
"""Values of ``adapter_kernels`` where a matrix and its adapter are one function."""
KvHeadCopies = Literal["none", "wide", "repeated", "all", "joined"]
SdpaMask = Literal["bool", "stream", "none", "given"]
PackedMask = Literal["none", "collated", "varlen", "rows", "one_row"]
LossPieces = Literal["eighths", "kept_eighths", "budget", "tiles"]
WithMamba2 = Literal["none", "falcon_h1", "nemotron_h"]
DdpFindsUnused = Literal["never", "unless_checkpointed", "full_unless_checkpointed", "always"]
ExpandableSegments = Literal["off", "one_node", "several_gpus", "torchrun", "on"]
FsdpUnits = Literal["layer", "feed_forward"]
RotaryModel = Literal[
    "none",
    "pairs",
    "halves",
    "pairs_of_layers",
    "halves_of_layers",
    "shared",
    "llama",
    "mistral",
    "mixtral",
    "phi",
    "gpt_neox",
    "falcon",
    "persimmon",
    "stablelm",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "starcoder2",
    "olmo",
]
RotaryInModel = Literal[
    "none",
    "all",
    "elementwise",
    "cohere",
    "falcon",
    "glm",
    "gpt_neox",
    "granite",
    "granitemoe",
    "llama",
    "mllama",
    "nemotron",
    "olmoe",
    "persimmon",
    "phi",
    "phimoe",
    "qwen2",
    "qwen2_moe",
    "qwen2_vl",
    "stablelm",
    "starcoder2",
]
RotaryRows = Literal["positions", "grown"]
TowerUnits = Literal["as_listed", "layers", "in_root"]
Quantizer = Literal["transformers", "lightning"]
PackedKernels = Literal["unread", "auto", "gptqmodel"]
SoftCaps = Literal["logits", "stream"]
QatWeights = Literal["unread", "intx", "int4"]
Fp8Linears = Literal["unread", "eager", "compiled"]
ModelParallel = Literal["unread", "features", "tokens", "gathered_heads", "exchanged_heads"]
MixtureCode = Literal["transformers", "torchtitan-2025", "scattermoe"]
HostExperts = Literal["none", "bf16", "int8"]
Classifies = Literal["no", "listed", "made"]
RewardHead = Literal["score", "value"]
LossWeights = Literal["none", "probability", "entropy", "entropy_of_rows", "divergence", "masked_tokens"]
Distillation = Literal[
    "none",
    "mixture",
    "forward",
    "reverse",
    "mixture_in_pieces",
    "forward_in_pieces",
    "reverse_in_pieces",
]
ZeroSums = Literal["never", "divided_sequences", "always"]
"""``divided_sequences``: where DeepSpeed divides sequences (``seq_parallel_communication_data_type``);
``always``: there, too, and everywhere else (``communication_data_type``).
"""
Zero3Rollouts = Literal["unread", "keeps_order", "forgets_order", "handed_at_once"]
"""The model is whole while it generates, and vLLM gets one matrix after the other.  ``keeps_order``: of
modules, as training had it; ``forgets_order``: it is learned anew each time.  ``handed_at_once``: vLLM gets
all of the model at once; else as ``keeps_order``.
"""
CompletionLogps = Literal["none", "divided", "in_place", "in_place_alone", "fused_rows", "tiles"]
PairLogps = Literal[
    "none",
    "whole",
    "whole_twice",
    "whole_with_loss",
    "whole_let_go",
    "unshifted",
    "tempered",
    "rows",
    "rows_and_hidden",
    "rows_let_go",
    "shifted_rows",
    "fused_rows",
    "joined",
    "tiles",
]
"""``whole``: of all logits at once, which are held until the loss is there.  ``whole_twice``: then once more
of the chosen sequences or good samples, whose likelihood is added.  ``whole_with_loss``: the model takes a
loss of its own, too, which goes when it returns (not for KTO).  ``whole_let_go``: not held; ``unshifted``:
nor cut by one position.  ``rows``: row by row of the batch.  ``rows_and_hidden``: all hidden states are
returned, too.  ``shifted_rows``: logits are cut by one position first; ``fused_rows``: and copied for a
kernel.  ``joined``: both sequences of a pair are one row, of half its length each.  ``rows_let_go``: without
copies for metrics.  ``tempered``: divided by a temperature.  ``tiles``: of tiles of the head's product.
``none``: it has no such trainer.
"""
