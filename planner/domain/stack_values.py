"""Words of facts of a software stack that other code names, too, or that are many."""

from __future__ import annotations

from typing import Literal

KbitUpcast = Literal["none", "norms", "layers", "all", "recast"]
"""``recast``: TRL returns token table and head of a 4-bit base to 16 bits under bf16, and leaves out a base
that a sharding divides.
"""
GatedDelta = Literal["fused_norm", "repeated", "grouped"]
"""Keys that several heads of values share are ``grouped`` by the kernel, or ``repeated`` before it.
``fused_norm``: and the gated norm is a kernel of flash-linear-attention.
"""
RecurrentKernels = Literal["packages", "torch"]
"""What computes layers without attention: flash-linear-attention, causal-conv1d and mamba-ssm,
or code of Transformers in torch, where these are not installed.  That of the gated delta rule goes through
the rows of each chunk, or ``solves_chunks``: a triangular system of each (from 5.17 on).
"""
PassedOver = Literal["parameters", "routers", "nothing"]
"""Which bare tensors k-bit quantisers leave as they are: all, or but for those of experts."""
FrozenLayers = Literal["differentiated", "skipped", "entered", "spared", "unread"]
DoraBranch = Literal["unread", "keeps_eye", "drops_eye", "adapter_first"]
ExpertTargets = Literal["named", "converted", "undropped", "any"]
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
    "ends_apart",
    "ends_in_root",
    "root_divided",
    "all_in_root",
    "root_whole",
    "root_returned",
    "ends_returned",
]
ADAPTERS_APART: tuple[Fsdp2Units, ...] = ("ends_in_root", "root_divided")
"""Values where each matrix of an adapter is a unit of its own."""
DIVIDED_ROOTS: tuple[Fsdp2Units, ...] = ("root_divided", "all_in_root")
"""Values where the root has all around the layers, and is divided again after its forward pass."""
RETURNED: tuple[Fsdp2Units, ...] = ("root_returned", "ends_returned")
"""Values of ``fsdp2_units`` where all is divided again when the model returns logits to a loop's own loss."""
Muon = Literal["unread", "matrices", "all", "gathers"]
"""``all``: it stops at tensors of three dimensions.  ``gathers``: whole gradients of what FSDP2 divides;
of the update each GPU gets its part, and AdamW steps adapters.
"""
MainGradients = Literal["fp32", "bf16"]
AdamStates = Literal["masters", "precise", "precise_bf16"]
Zero12Upload = Literal["cast_on_host", "fp32_on_gpu", "buffer_on_host"]
ZeroQuantized = Literal["none", "weights", "gradients", "weights+gradients"]
AdapterKernels = Literal["eager", "in_place", "compiled", "fused_apart", "fused", "fused_dropped"]
FUSED_KERNELS: tuple[AdapterKernels, ...] = ("fused_apart", "fused", "fused_dropped")
"""Values of ``adapter_kernels`` where a matrix and its adapter are one function."""
PackedMask = Literal["none", "collated", "varlen", "rows", "one_row"]
WithMamba2 = Literal["none", "falcon_h1", "nemotron_h"]
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
    "gemma",
    "gemma2",
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
ModelParallel = Literal["unread", "features", "tokens", "gathered_heads", "exchanged_heads"]
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
LogitMetrics = Literal["none", "copied_once", "by_sample", "copied", "copied_twice"]
"""What a trainer of language models measures on logits: the share of tokens that it gets right, of a copy of
several samples.  ``by_sample``: and their entropy, of one sample after the other; ``copied``: in pieces;
``copied_twice``: while the entropy's own copy is there.
"""
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
