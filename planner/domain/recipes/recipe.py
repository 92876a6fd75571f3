"""How the model is trained: every choice of the user that changes memory or time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from planner.domain.recipes.attention_kernels import Attention
from planner.domain.recipes.fp8 import Fp8
from planner.domain.recipes.optimizers import Optimizer
from planner.domain.recipes.parallel import ALONE, Parallel
from planner.domain.recipes.rollout import FrozenModel, Rollout
from planner.domain.recipes.sample_lengths import SampleLengths
from planner.domain.recipes.sharding import Sharding
from planner.domain.vision import FrozenPart, Images

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from planner.domain.hardware import Hardware

    # A number, or an array of numbers when one call answers a grid of scenarios.
    Number = int | float | npt.NDArray[np.float64]
else:
    Number = Any

Dtype = Literal["fp32", "bf16", "fp16"]
Method = Literal["full", "lora"]
Quantization = Literal["none", "int8", "nf4", "fp4", "gptq-int4", "gptq-int8", "awq-int4", "aqlm", "fp8"]
Precision = Literal["bf16", "fp16", "fp32", "bf16-mixed", "fp16-mixed"]
Qat = Literal["none", "int8-int4", "mxfp4", "ternary"]
Offload = Literal[
    "none",
    "optimizer",
    "optimizer+params",
    "params",
    "activations",
    "optimizer+activations",
    "optimizer+params+activations",
    "optimizer-nvme",
    "optimizer+params-nvme",
    "params-nvme",
]
Loss = Literal["hf", "chunked", "liger"]
Padding = Literal["packed", "max_length", "longest"]
CheckpointPolicy = Literal["full", "selective-op"]
Task = Literal[
    "sft",
    "pretrain",
    "dpo",
    "kto",
    "orpo",
    "simpo",
    "reward",
    "prm",
    "classify",
    "gkd",
    "grpo",
    "ppo",
]

DTYPES: tuple[Dtype, ...] = get_args(Dtype)
QUANTIZATIONS: tuple[Quantization, ...] = get_args(Quantization)
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
QATS: tuple[Qat, ...] = get_args(Qat)
OFFLOADS: tuple[Offload, ...] = get_args(Offload)
LOSSES: tuple[Loss, ...] = get_args(Loss)
PADDINGS: tuple[Padding, ...] = get_args(Padding)
CHECKPOINT_POLICIES: tuple[CheckpointPolicy, ...] = get_args(CheckpointPolicy)
TASKS: tuple[Task, ...] = get_args(Task)

PAIR_TASKS: frozenset[Task] = frozenset({"dpo", "orpo", "simpo", "reward"})
"""Tasks whose samples are two sequences: a chosen and a rejected one."""
REFERENCE_TASKS: frozenset[Task] = frozenset({"dpo", "kto"})
"""Tasks that compare with the model as it was before."""
LANGUAGE_TASKS: frozenset[Task] = frozenset({"sft", "pretrain", "prm", "classify"})
"""Tasks whose loss is that of each sample alone: of its tokens, of labels of its steps (``prm``) or of one
label (``classify``).
"""
LABEL_TASKS: frozenset[Task] = frozenset({"prm", "classify"})
"""Tasks that learn labels of text, by a head of their own."""
GENERATING_TASKS: frozenset[Task] = frozenset({"grpo", "ppo"})
"""Tasks that train on completions which the model generates itself."""

BITSANDBYTES: frozenset[Quantization] = frozenset({"int8", "nf4", "fp4"})
"""Quantisations that loading makes of any checkpoint; the others come packed."""
GPTQ: frozenset[Quantization] = frozenset({"gptq-int4", "gptq-int8"})
IN_GROUPS: frozenset[Quantization] = GPTQ | {"awq-int4"}
"""Whose scale is shared by a group of inputs, as many as the checkpoint says; held in buffers."""
PREPACKED: frozenset[Quantization] = IN_GROUPS | {"aqlm", "fp8"}
"""Quantisations that only a checkpoint made with them has."""
STAYS_16_BIT: frozenset[Quantization] = GPTQ | {"aqlm", "fp8"}
"""Quantisations whose unquantised weights PEFT's k-bit preparation leaves as they are; fp8 has none.

Source: peft 0.7.1 and 0.21.2 utils/other.py prepare_model_for_kbit_training (AWQ is not among the
exceptions); transformers 5.23 sets is_loaded_in_4bit and is_loaded_in_8bit, for which trainers prepare a
model, for bitsandbytes alone.
"""

DTYPE_BYTES: dict[str, int] = {"fp32": 4, "bf16": 2, "fp16": 2}

TARGET_PATTERN = "regex:"
"""Begins a LoRA target that is a regular expression over the paths of modules."""
TARGET_PARAMETER = "param:"
"""Begins a LoRA target that is the name of a parameter: PEFT's ``target_parameters``."""
TARGETS_OF_PEFT = "peft-default"
"""The LoRA target that stands for what PEFT adapts by itself where no module is named."""
LINEAR_MODULES = "linear-modules"
"""The LoRA target that stands for the names of all linear modules, which a tool finds and hands to PEFT."""
LINEAR_CLASSES = "linear-classes"
"""The same for a tool that takes modules by the names of their classes, which a router's may not have."""
ADAPTABLE_MODULES = "adaptable-modules"
"""The same for a tool that leaves out what PEFT refuses, too.  Source: ms-swift 4.6.0
pipelines/train/tuner.py _drop_mamba_incompatible_targets.
"""

# What people call a method -> (method, quantisation, double quantisation).
METHOD_ALIASES: dict[str, tuple[Method, Quantization | None, bool | None]] = {
    "full": ("full", None, None),
    "lora": ("lora", None, None),
    "qlora": ("lora", "nf4", True),
    "int8": ("lora", "int8", False),
}


@dataclass(frozen=True, slots=True)
class Adapter:
    """LoRA matrices: ``A`` is ``(rank, in)``, ``B`` is ``(out, rank)`` for every adapted linear.

    ``targets`` is ``("all-linear",)``, ``("attention",)`` or module names.  ``modules_to_save`` are trained
    whole; PEFT keeps the frozen original beside the trainable copy.  ``dora``: rows of base and adapter
    together are scaled by a trained magnitude.  ``oft_block_size``: other than 0, there are no such matrices
    (rank 0) but OFT's rotations, which turn so many neighbouring inputs of a matrix at a time.  ``vera``: all
    linears share one frozen ``A`` and one ``B``, and each trains a vector behind either of them.
    """

    rank: Number
    targets: tuple[str, ...]
    dropout: float
    modules_to_save: tuple[str, ...]
    dtype: Dtype
    dora: bool
    oft_block_size: int = 0
    vera: bool = False

    @property
    def is_plain(self) -> bool:
        """LoRA's two matrices and nothing else."""
        return not (self.dora or self.oft_block_size or self.vera)

    @property
    def saved_names(self) -> frozenset[str]:
        """Last parts of the names in ``modules_to_save``."""
        return frozenset(name.rpartition(".")[2] for name in self.modules_to_save)


@dataclass(frozen=True, slots=True)
class Packing:
    """How the checkpoint of a quantised base packs a matrix.

    ``group``: inputs that share a scale, 0 where all do; of AQLM those that one code stands for; of fp8 the
    side of a square that shares one, 0 where a matrix does.
    ``codebooks`` of ``2 ** code_bits`` vectors each: AQLM's.  ``is_stored``: matrices of bitsandbytes come
    packed, too.
    """

    group: int = 128
    codebooks: int = 0
    code_bits: int = 0
    is_stored: bool = False


@dataclass(frozen=True, slots=True)
class Numerics:
    """Dtypes: of the weights as loaded, of the compute, and how the base is quantised.

    ``precision`` ending in ``-mixed`` means autocast (native AMP) or the 16-bit engine of DeepSpeed with fp32
    master weights.  ``quant_storage`` is the dtype in which 4-bit bytes are stored; other than ``None`` it
    lets FSDP and ZeRO-3 shard them.  ``fp8``: whose products of the layers' matrices are in 8 bits, and how
    they scale (:mod:`planner.domain.recipes.fp8`).  ``qat``: what inputs and weights of matrices are rounded
    to as if quantised, and ``qat_group`` inputs share a scale of weights (``ternary``: all of them).
    """

    load_dtype: Dtype
    precision: Precision
    quantization: Quantization = "none"
    double_quant: bool = False
    quant_storage: Dtype | None = None
    packing: Packing = Packing()
    fp8: Fp8 = "none"
    qat: Qat = "none"
    qat_group: int = 256

    @property
    def arrives_packed(self) -> bool:
        """Whether the checkpoint holds packed matrices, so that none passes by whole."""
        return self.quantization in PREPACKED or self.packing.is_stored

    @property
    def compute_dtype(self) -> Dtype:
        """Dtype of matrix products."""
        name = self.precision.removesuffix("-mixed")
        return "bf16" if name == "bf16" else "fp16" if name == "fp16" else "fp32"

    @property
    def mixed(self) -> bool:
        """Whether 16-bit compute is laid over weights by autocast or an engine."""
        return self.precision.endswith("-mixed")

    def rounds(self, n_inputs: int) -> bool:
        """Whether a matrix of so many inputs may be rounded: groups leave none over."""
        return self.qat == "ternary" or n_inputs % self.qat_group == 0


def _smaller(first: Number, second: Number) -> Number:
    """The smaller of both, elementwise."""
    is_above: Any = first > second
    smaller: Number = first + (second - first) * is_above
    return smaller


def _anywhere(condition: Any) -> bool:
    """Whether it holds; in a grid: for any of its scenarios."""
    return condition if isinstance(condition, bool) else bool(condition.any())


@dataclass(frozen=True, slots=True)
class Batch:
    """Sizes of one optimizer step.

    ``micro_batch`` is per GPU and micro-step; ``seq_len`` the padded or packed length in tokens, or the cap
    on natural lengths; ``tokens_per_sample`` the mean number of real tokens of a sequence.  ``is_paired``: a
    sample is two sequences, prompt and completion each.  ``lengths``: those of all samples, where the data
    set was read.  ``images``: those of each sequence, whose tokens are among its own; ``None`` for text
    alone.  ``parts``: over how many GPUs each sequence is divided, where the lengths are those of one GPU's
    part.
    """

    micro_batch: Number
    grad_accum: Number
    seq_len: Number
    padding: Padding
    tokens_per_sample: Number
    is_paired: bool = False
    lengths: SampleLengths | None = None
    images: Images | None = None
    parts: int = 1

    @property
    def rows(self) -> Number:
        """Sequences of one micro-batch."""
        return self.micro_batch * 2 if self.is_paired else self.micro_batch

    def mean_tokens_at(self, seq_len: Number) -> Number:
        """Mean real tokens of a sample if the sequence length were ``seq_len``.

        Samples that fill the length fill every length;
        shorter ones keep theirs and are cut where ``seq_len`` is shorter still.
        """
        if self.lengths is not None and self.padding != "packed":
            return self.lengths.mean_tokens(seq_len)
        if self.tokens_per_sample >= self.seq_len:
            return seq_len
        return _smaller(seq_len, self.tokens_per_sample)

    def padded_within(self, seq_len: Number) -> Number:
        """Tokens of the longest sequence where none may be longer than ``seq_len``:
        a batch that is padded to its longest sample is never longer than the longest of the data set.
        """
        if self.lengths is None or self.padding != "longest":
            return seq_len
        return _smaller(seq_len, int(self.lengths.tokens[-1]))

    @property
    def is_padded(self) -> bool:
        """Whether samples are padded, or have lengths of their own.  In a grid:
        whether those of any of its scenarios are.
        """
        if self.padding == "packed":
            return False
        return _anywhere(self.tokens_per_sample < self.seq_len)

    @property
    def masks_padding(self) -> bool:
        """Whether attention needs a mask for padding: a row alone has none where the longest row ends it.

        Source: transformers 5.23 masking_utils.py _ignore_causal_mask_sdpa (``padding_mask.all()``).
        """
        return self.is_padded and (self.padding != "longest" or _anywhere(self.rows > 1))


@dataclass(frozen=True, slots=True)
class Recipe:
    """The training recipe.  No field has a silent default:
    the intake resolves each one and records its origin.

    ``train_layers``: what a full fine-tune trains where that is not everything
    (:mod:`planner.intake.train_layers`); empty for all.  ``frozen``: parts of a vision-language model
    that are not trained, and get no adapters.  ``optimizer_rank``: rows to which APOLLO and GaLore project.
    ``optimizer_in_backward``: each parameter is updated as soon as its gradient is there, which then goes.
    ``rollout``: what is generated, of a task that does so.
    ``checkpoint_policy``: a checkpointed layer keeps its input alone (``full``), or attention's output and
    that of every second matrix product, too (``selective-op``).  ``caches_reference``: what the model was
    before is asked once, before training.  ``compares_logits``: the loss of tokens has a part that compares
    with the logits of the model as it was.  ``teacher``: the model whose logits a student (``gkd``) is
    compared with.  ``parallel``: GPUs that share a batch.
    """

    method: Method
    numerics: Numerics
    adapter: Adapter | None
    train_layers: tuple[str, ...]
    optimizer: Optimizer
    sharding: Sharding
    offload: Offload
    gradient_checkpointing: bool
    checkpoint_reentrant: bool
    checkpoint_every: int
    checkpoint_policy: CheckpointPolicy
    attention: Attention
    loss: Loss
    batch: Batch
    task: Task
    caches_reference: bool = False
    compares_logits: bool = False
    frozen: tuple[FrozenPart, ...] = ()
    optimizer_in_backward: bool = False
    optimizer_rank: int | None = None
    rollout: Rollout | None = None
    teacher: FrozenModel | None = None
    parallel: Parallel = ALONE

    @property
    def without_sizes(self) -> Recipe:
        """The same with sizes that say nothing, so that recipes which differ in sizes alone are equal.

        Whether rows are packed is no size; how far the others are padded is one.
        """
        adapter = replace(self.adapter, rank=1) if self.adapter else None
        padding: Padding = "packed" if self.batch.padding == "packed" else "max_length"
        return replace(self, batch=Batch(1, 1, 1, padding, 1), adapter=adapter)

    def shards(self, hardware: Hardware) -> Number:
        """Over how many GPUs one copy of what is divided lies;
        those that divide a sequence are among them.
        """
        if self.sharding.scope == "node":
            return hardware.world_size // self.copies(hardware) // self.parallel.tensor
        return self.sharding.shards(hardware) // self.parallel.tensor

    def copies(self, hardware: Hardware) -> Number:
        """Copies of what is divided: one, or those of HSDP."""
        return (self.parallel.replicas or hardware.nodes) if self.sharding.scope == "node" else 1

    @property
    def has_own_loss(self) -> bool:
        """Whether its trainer takes another loss than that of labels: of pairs, of samples marked good and
        bad, of rewards, or of a teacher.
        """
        return self.task not in LANGUAGE_TASKS

    @property
    def has_reference(self) -> bool:
        """Whether each micro-step runs the model as it was before, too, without gradients."""
        if self.rollout is not None:
            return self.rollout.has_reference
        return self.compares_logits or (self.task in REFERENCE_TASKS and not self.caches_reference)

    @property
    def has_reference_model(self) -> bool:
        """Whether that is a second model; adapters are switched off instead."""
        return self.has_reference and self.adapter is None

    @property
    def generation_micro_steps(self) -> Number:
        """Micro-batches that are generated at once; 0 where nothing is."""
        if self.rollout is None:
            return 0
        return self.batch.grad_accum if self.rollout.micro_steps is None else self.rollout.micro_steps

    @property
    def generations_per_step(self) -> Number:
        """How often completions are generated for one optimizer step, below 1 where they are trained on
        repeatedly; 0 where nothing is generated.
        """
        if self.rollout is None:
            return 0
        return self.batch.grad_accum / (self.generation_micro_steps * self.rollout.iterations)

    @property
    def generates_between(self) -> bool:
        """Whether completions are generated between micro-steps of one optimizer step; PPO's are all there
        before the first.
        """
        return self.task != "ppo" and bool(0 < self.generation_micro_steps < self.batch.grad_accum)

    @property
    def asks_old(self) -> bool:
        """Whether log-probabilities of completions are computed before they are trained on.

        They are where weights change between generation and training, and where another program generates.
        PPO always asks. In a grid: in any of its scenarios.
        Source: trl 1.16.0 trainer/grpo_trainer.py _generate_and_score_completions (``old_per_token_logps``);
        0.9.6 trainer/ppo_trainer.py step.
        """
        if self.rollout is None or self.task == "ppo":
            return self.rollout is not None
        changes = self.batch.grad_accum % (self.generation_micro_steps * self.rollout.iterations) != 0
        return _anywhere(changes) or self.rollout.generator != "transformers"

    @property
    def saves_on_host(self) -> bool:
        """Whether every saved tensor goes to host RAM, and not only the inputs of checkpoints."""
        return self.offloads_activations and not self.gradient_checkpointing

    @property
    def rebuilds_some(self) -> bool:
        """Whether checkpointing recomputes only every n-th layer, so that the others keep what they save."""
        return self.gradient_checkpointing and self.checkpoint_every > 1

    def recomputed_share(self, n_layers: int) -> float:
        """Share of the layers that run forward again in backward: layers 0, n, 2n, ...;
        none without checkpointing.
        """
        return -(-n_layers // self.checkpoint_every) / n_layers if self.gradient_checkpointing else 0.0

    @property
    def offloads_something(self) -> bool:
        """Whether anything leaves the GPU, so that the host has a part in the time of a step."""
        return self.offload != "none"

    @property
    def offloads_activations(self) -> bool:
        """Whether what backward needs waits in host RAM, alone or beside weights and states."""
        return self.offload.endswith("activations")

    @property
    def uses_deepspeed(self) -> bool:
        """Whether DeepSpeed's engine runs the step: it keeps 16-bit weights and fp32 masters itself,
        without autocast.
        """
        return self.sharding.engine == "deepspeed"

    @property
    def uses_fsdp(self) -> bool:
        """Whether PyTorch's fully sharded data parallel runs the step."""
        return self.sharding.engine == "fsdp"

    @property
    def offloads_optimizer(self) -> bool:
        """Whether optimizer states and master weights leave the GPU."""
        return self.offload.startswith("optimizer")

    @property
    def divides_base(self) -> bool:
        """Whether ZeRO-3 and FSDP can divide the base matrices.

        k-bit ones only when 4-bit bytes are stored as elements of a float dtype that the engine can flatten
        (``quant_storage``); int8 under FSDP2 of a stack that can (``fsdp2_divides_int8``), and nowhere else.
        """
        if self.numerics.quantization == "int8":
            return self.sharding.dtensors
        if self.numerics.quantization in ("nf4", "fp4", "gptq-int4"):
            return self.numerics.quant_storage is not None
        return self.numerics.quantization == "none"

    @property
    def offloads_params(self) -> bool:
        """Whether weight shards leave the GPU between uses."""
        return "params" in self.offload

    @property
    def offloads_to_nvme(self) -> bool:
        """Whether offloaded state goes on to NVMe instead of staying in host RAM."""
        return self.offload.endswith("-nvme")
