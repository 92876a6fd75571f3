"""The one table of what a user can say about a job.

Command-line flags, TOML keys, record columns and the messages about wrong values are all made from
``REQUEST_FIELDS``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from planner.domain.recipes.attention_kernels import ATTENTION_FACTS, ATTENTIONS
from planner.domain.recipes.fp8 import FP8S
from planner.domain.recipes.optimizers import OPTIMIZER_FACTS, OPTIMIZERS
from planner.domain.recipes.parallel import DEVICE_MAPS, SCHEDULES
from planner.domain.recipes.recipe import (
    CHECKPOINT_POLICIES,
    DTYPES,
    LOSSES,
    METHOD_ALIASES,
    OFFLOADS,
    PADDINGS,
    PRECISIONS,
    QATS,
    QUANTIZATIONS,
    TASKS,
)
from planner.domain.recipes.rollout import GENERATORS
from planner.domain.recipes.sharding import SHARDING_NAMES
from planner.errors import UsageError, show
from planner.intake.given.request_field import Part, RequestField
from planner.units import GIB, MEGA, MIB, TERA

LINKS = ("nvlink", "pcie", "qpi")
# A load dtype that only the model can name.
CHECKPOINT_DTYPE = "checkpoint"
MAX_SEQ_TOKENS = 16_777_216
_TIB = 1024 * GIB


Spellings = tuple[tuple[str, str], ...]
# Long dtype names as PyTorch writes them.
_OF_DTYPES = (
    ("bfloat16", "bf16"),
    ("float16", "fp16"),
    ("half", "fp16"),
    ("float32", "fp32"),
    ("float", "fp32"),
)


def _one_of(
    name: str,
    help_text: str,
    choices: tuple[str, ...],
    spellings: Spellings = (),
    elsewhere: Spellings = (),
) -> RequestField:
    return RequestField(name, "choice", help_text, choices=choices, spellings=spellings, elsewhere=elsewhere)


# Torch's own names, whose step over lists is the default on a GPU (torch 2.13 optim/adamw.py); Adam has as
# many states.
_OF_TORCH = (("adamw", "adamw_torch"), ("adam", "adamw_torch"))


# What is trained, and against which loss, are flags of their own.
_NOT_METHODS = (
    ("dora", "--method lora --dora"),
    ("qdora", "--method qlora --dora"),
    ("vera", "--method lora --vera"),
    ("freeze", "--method full --train-layers NAMES"),
    *((task, f"--task {task} beside --method full or lora") for task in TASKS),
)

# Numbers of bits that are said of the computation, and are of the base or of products.
_NOT_PRECISIONS = (
    ("fp8", "--fp8 tensorwise or --fp8 te-delayed"),
    *((bits, "--method int8") for bits in ("int8", "8bit", "8-bit")),
    *((bits, "--method qlora") for bits in ("int4", "4bit", "4-bit", "nf4")),
)


def _named(names_of: Mapping[str, tuple[str, ...]]) -> Spellings:
    return tuple((name, choice) for choice, names in names_of.items() for name in names)


def _count(name: str, help_text: str, high: int, column: str = "") -> RequestField:
    return RequestField(name, "integer", help_text, low=1, high=high, other_column=column)


def _amount(name: str, help_text: str, high: float, *, of_tokens: bool = False) -> RequestField:
    return RequestField(name, "number", help_text, low=0, high=high, above_low=True, of_tokens=of_tokens)


def _memory(name: str, help_text: str, low: int, high: int) -> RequestField:
    return RequestField(name, "size", help_text, low=low, high=high)


_FIELDS = (
    RequestField(
        "model",
        "text",
        "Model: catalog id (plan models), Hub id, a size such as 7b, or the path of a config.json",
        needed_for="model",
    ),
    RequestField(
        "method",
        "choice",
        "full, lora, qlora (lora on an nf4 base with double quantisation) or int8 (lora on an int8 base)",
        choices=tuple(METHOD_ALIASES),
        elsewhere=_NOT_METHODS,
        needed_for="recipe",
    ),
    _one_of(
        "task",
        "sft, pretrain; dpo, orpo, simpo, reward (pairs of sequences, each of up to --seq tokens); kto; prm "
        "(rewards of steps); classify (with --num-labels); gkd (with --teacher-model); grpo, ppo (--seq is "
        "prompt and completion together)",
        TASKS,
    ),
    _count("num_labels", "Labels of a classifier (classify)", 1_000_000),
    _one_of("quantization", "How the frozen base is quantised", QUANTIZATIONS),
    RequestField("double_quant", "flag", "Quantise the scales of a 4-bit base once more"),
    _one_of(
        "quant_storage",
        "Dtype in which 4-bit bytes are stored; lets FSDP and ZeRO-3 shard them",
        DTYPES,
        _OF_DTYPES,
    ),
    RequestField(
        "gpu",
        "text",
        "GPU: catalog id or alias (plan gpus); X:n means n of them per node",
        needed_for="hardware",
        or_else="gpu_memory",
    ),
    _count("gpus", "GPUs in each node", 1_024, "gpus_per_node"),
    _memory(
        "gpu_memory",
        "Memory that one GPU makes visible, such as 23.5GiB; instead of the catalog's figure, or for an "
        "unlisted card",
        MIB,
        16 * _TIB,
    ),
    _memory(
        "gpu_reserved",
        "Memory on each GPU that a desktop or another job already holds, such as 600MiB",
        0,
        16 * _TIB,
    ),
    RequestField("host", "text", "Machine around the cards, such as server-256g"),
    _memory("host_memory", "RAM of one node that the job may use, such as 256GB", MIB, 1_024 * _TIB),
    _one_of("link", "How the GPUs of one node talk, when it is not the card's own way", LINKS),
    _amount(
        "link_gb_per_s", "GB/s that nccl-tests shows as bus bandwidth between the GPUs of one node", 10_000
    ),
    _count("pcie_lanes", "PCIe lanes of the slot of each GPU, when they are fewer than the card's", 16),
    _count("pcie_generation", "PCIe generation of the slots, when it is older than the card's", 9),
    _amount("power_limit_w", "Power limit of each GPU in watts, as nvidia-smi -pl sets it", 10_000),
    _count("nodes", "Nodes in the job", 100_000),
    RequestField(
        "seq",
        "integer",
        "Sequence length in tokens, such as 4096 or 4k (the same; 1m is 1,048,576): padded or packed "
        "length, or the cap on natural lengths",
        low=1,
        high=MAX_SEQ_TOKENS,
        of_tokens=True,
        needed_for="recipe",
        other_column="seq_len",
    ),
    _count("batch", "Samples in the micro-batch of one GPU", 65_536, "micro_batch"),
    _count("grad_accum", "Micro-batches per optimizer step", 65_536),
    _one_of(
        "padding",
        "packed (several samples fill a sequence), max_length (all padded to --seq) or longest (to the "
        "longest of the batch)",
        PADDINGS,
    ),
    _amount(
        "tokens_per_sample",
        "Mean real tokens of one sample, when shorter than --seq",
        MAX_SEQ_TOKENS,
        of_tokens=True,
    ),
    RequestField(
        "data",
        "text",
        "File of the training samples (JSONL, or a column of token counts): their lengths give padding, "
        "memory, time and cost",
    ),
    RequestField(
        "tokenizer", "text", "tokenizer.json, or its folder, to count the tokens of --data that is text"
    ),
    RequestField(
        "images_per_sample", "integer", "Images in each sample of a vision-language model", low=0, high=10_000
    ),
    RequestField("image_size", "text", "Width x height of every image in pixels, such as 1024x768"),
    _count("lora_rank", "Rank of the LoRA matrices", 65_536),
    RequestField(
        "lora_targets",
        "names",
        "all-linear, linear-modules (without experts that are one tensor), adaptable-modules (those of them "
        "that PEFT does not refuse), attention, peft-default (what PEFT adapts where no module is named), "
        "module names separated by ';', regex: and an expression, or param: and a parameter of experts",
    ),
    RequestField(
        "lora_dropout",
        "number",
        "Dropout before the LoRA matrices, a probability",
        low=0,
        high=1,
        below_high=True,
    ),
    RequestField("modules_to_save", "names", "Modules trained whole beside the adapters, separated by ';'"),
    RequestField(
        "train_layers",
        "names",
        "Trained parts of a full fine-tune, separated by ';': last:8, first:8, spread:8, 16-31, 5, "
        "4-7:mlp, drawn:4@20 (anew every 20 steps), embed, norm, head",
    ),
    RequestField(
        "freeze",
        "names",
        "Parts of a vision-language model that get neither gradients nor adapters, separated by ';': "
        "vision_tower, projector, language_model",
    ),
    RequestField(
        "dora",
        "flag",
        "Scale the rows of base and adapter together by a trained magnitude (DoRA, PEFT use_dora)",
    ),
    RequestField(
        "vera",
        "flag",
        "Train vectors behind two frozen matrices that all layers share (VeRA; --lora-rank is their rank)",
    ),
    _count(
        "oft_block_size",
        "OFT instead of LoRA matrices: neighbouring inputs of a matrix that are rotated together",
        65_536,
    ),
    _one_of(
        "optimizer",
        "Optimizer, by its name in Hugging Face",
        OPTIMIZERS,
        _named({name: facts.trainer_names for name, facts in OPTIMIZER_FACTS.items()}) + _OF_TORCH,
    ),
    RequestField(
        "optimizer_in_backward",
        "flag",
        "Update each parameter in the backward pass as soon as its gradient is there, then free the gradient",
    ),
    _count("optimizer_rank", "Rows to which APOLLO and GaLore project gradients", 65_536),
    _one_of(
        "precision",
        "Dtype of the computation; -mixed keeps fp32 masters or uses autocast",
        PRECISIONS,
        _OF_DTYPES,
        _NOT_PRECISIONS,
    ),
    _one_of(
        "fp8",
        "Matrix products of the layers in fp8, by how torchao or (te-) Transformer Engine scales them; "
        "-gathered: weights are sent in 8 bits, too",
        FP8S,
    ),
    _one_of(
        "qat",
        "Quantisation-aware training: inputs and weights of products are rounded as if quantised, by torchao "
        "or (ternary) onebitllms",
        QATS,
    ),
    _count("qat_group", "Inputs that share one scale of a weight that is rounded as if quantised", 65_536),
    _one_of(
        "load_dtype",
        "Dtype in which the weights are loaded: fp32, bf16, fp16, or checkpoint for that of the file",
        (*DTYPES, CHECKPOINT_DTYPE),
        _OF_DTYPES,
    ),
    _one_of("adapter_dtype", "Dtype of the LoRA matrices", DTYPES, _OF_DTYPES),
    RequestField(
        "gradient_checkpointing", "flag", "Recompute activations in the backward pass instead of keeping them"
    ),
    RequestField("checkpoint_reentrant", "flag", "Use the reentrant variant of gradient checkpointing"),
    _count("checkpoint_every", "Checkpoint only every n-th layer; the others keep their activations", 1_024),
    _one_of(
        "checkpoint_policy",
        "What a checkpointed layer keeps: its input (full), or outputs of attention and every second "
        "product, too (selective-op)",
        CHECKPOINT_POLICIES,
    ),
    _one_of(
        "attention",
        "Attention kernel",
        ATTENTIONS,
        _named({kernel: facts.names for kernel, facts in ATTENTION_FACTS.items()}),
    ),
    _one_of("loss", "Loss kernel: hf (full logits), chunked or liger", LOSSES),
    _one_of("sharding", "How state is spread over GPUs", SHARDING_NAMES, (("fsdp2", "fsdp"),)),
    _one_of("offload", "What leaves the GPU for host RAM or NVMe", OFFLOADS),
    _one_of(
        "device_map",
        "One process spreads the layers over all GPUs, which work one after the other: auto, as "
        "from_pretrained takes it",
        DEVICE_MAPS,
        (("balanced", "auto"),),
    ),
    _count("tensor_parallel", "GPUs that divide the matrices of a model", 65_536),
    _count("pipeline_parallel", "Groups of GPUs that each have some of the layers", 65_536),
    _one_of(
        "pipeline_schedule",
        "Order of a pipeline's micro-batches: 1f1b, interleaved (several runs of layers a group) or gpipe",
        SCHEDULES,
    ),
    _count(
        "pipeline_microbatches",
        "Micro-batches that run through a pipeline before gradients are reduced; all of a step, if not given",
        65_536,
    ),
    _count(
        "pipeline_runs", "Runs of layers of each group of an interleaved pipeline; 2, if not given", 65_536
    ),
    _count("pipeline_first_layers", "Layers of the first group of a pipeline of Megatron", 65_536),
    _count("pipeline_last_layers", "Layers of the last group of a pipeline of Megatron", 65_536),
    _count("context_parallel", "GPUs that divide each sequence", 65_536),
    _count("expert_parallel", "GPUs that divide the experts of each layer, beside FSDP2", 65_536),
    _count(
        "expert_tensor_parallel",
        "GPUs that divide the features of each expert, under Megatron: 1 or as many as --tensor-parallel",
        65_536,
    ),
    _count("hpz", "GPUs over which ZeRO-3 divides a second copy of the weights (ZeRO++ hpZ)", 65_536),
    _count("replicas", "Copies of what hsdp divides; one on each node, if not given", 65_536),
    _count("generations", "Completions of each prompt (grpo)", 65_536),
    RequestField(
        "completion_length",
        "integer",
        "Most tokens of a completion, which are a part of --seq (grpo, ppo)",
        low=1,
        high=MAX_SEQ_TOKENS,
        of_tokens=True,
    ),
    _count(
        "generation_steps",
        "Micro-batches that are generated at once; as many as --grad-accum, if not given (grpo)",
        65_536,
    ),
    _count("iterations", "How often each completion is trained on (grpo, ppo)", 65_536),
    RequestField(
        "compare_reference",
        "flag",
        "Compare with the model as it was before training, as a beta other than 0 does (grpo)",
    ),
    _one_of(
        "generator",
        "Who generates: transformers, vllm on the same cards, or vllm-server on others (grpo)",
        GENERATORS,
    ),
    RequestField(
        "vllm_memory",
        "number",
        "Share of the card's memory that vLLM takes (grpo)",
        low=0,
        high=1,
        above_low=True,
        below_high=True,
    ),
    _count("vllm_tensor_parallel", "GPUs over which each vLLM divides its weights (grpo)", 1_024),
    RequestField(
        "vllm_sleep", "flag", "vLLM gives its memory back while the model is trained (sleep mode; grpo)"
    ),
    RequestField(
        "reward_model",
        "text",
        "Frozen model on the card that scores completions, named as --model is; functions need none (grpo)",
    ),
    RequestField(
        "teacher_model",
        "text",
        "Frozen model on the card whose logits a student learns, named as --model is (gkd)",
    ),
    _one_of(
        "reward_dtype",
        "Dtype in which the reward model is loaded, or checkpoint for that of its file",
        (*DTYPES, CHECKPOINT_DTYPE),
        _OF_DTYPES,
    ),
    RequestField("stack", "text", "Software that runs the job, such as trl or hf-trainer@5 (plan stacks)"),
    RequestField("versions", "names", "Versions of packages inside the stack, such as deepspeed==0.16.4"),
    RequestField(
        "switches",
        "names",
        "Switches of the stack that differ, such as zero12_overlap=false (plan stacks --json)",
    ),
    _count("samples", "Training samples of the whole run", TERA, "n_samples"),
    _amount("epochs", "Passes over the samples", 100_000),
    _count("eval_samples", "Samples that are evaluated after each epoch", TERA),
    _count("eval_batch", "Samples per GPU and evaluation step", 65_536, "eval_micro_batch"),
    _amount("price", "US dollars per GPU and hour", MEGA),
)
REQUEST_FIELDS: dict[str, RequestField] = {field.name: field for field in _FIELDS}
"""Every field by name, in the order in which help prints them."""
# The first field under each heading of help.
_HEADINGS = {
    "model": "Model and method",
    "gpu": "Hardware",
    "seq": "Samples and batches",
    "lora_rank": "Adapters and trained parts",
    "optimizer": "Optimizer and precision",
    "gradient_checkpointing": "Recomputation and kernels",
    "sharding": "Several GPUs and offload",
    "generations": "Generation, rewards and teachers",
    "stack": "Software",
    "samples": "Time and cost of a run",
}
_NEEDED = tuple(field for field in _FIELDS if field.needed_for is not None)
FIELD_OF_COLUMN: dict[str, str] = {field.column: field.name for field in _FIELDS}
"""Names in records and documents -> names of fields."""


def headings() -> dict[str, str]:
    """The heading of help under which each field stands, by its name."""
    found, heading = {}, ""
    for name in REQUEST_FIELDS:
        found[name] = heading = _HEADINGS.get(name, heading)
    return found


def missing_fields(given: Callable[[str], bool], parts: Iterable[Part]) -> tuple[str, ...]:
    """Fields without a default that ``given`` answers no to, of these parts of a job."""
    asked = set(parts)
    wanted = [field for field in _NEEDED if field.needed_for in asked]
    return tuple(
        field.name for field in wanted if not (given(field.name) or (field.or_else and given(field.or_else)))
    )


def missing_text(names: Sequence[str], example: str = "", prefix: str = "") -> str:
    """The message about fields that were not given; ``prefix`` is how their names are typed,
    ``example`` a call that works.
    """
    missing = "missing " + ", ".join(f"{prefix}{name}" for name in names)
    if example:
        return f"{missing}; for example: {example}"
    return f"{missing} ({'; '.join(REQUEST_FIELDS[name].help for name in names)})"


def split_count(gpu: str) -> tuple[str, int | None]:
    """Card and GPUs per node of ``X:n``, ``nxX``, ``X xn``, or ``Xxn`` behind a digit; ``None`` where no
    number is written.

    The name of a MIG slice (``a100-80gb:mig-3g.40gb``) has a colon of its own and stays whole, as several
    cards with commas do: the catalog says how to go on.

    Raises:
        UsageError: no card before the colon, or no number after it.
    """
    if found := re.fullmatch(r"\s*(\d+)\s*[xX]\s*([a-zA-Z].*|\d{3,}.*)", gpu):
        return found[2].strip(), int(REQUEST_FIELDS["gpus"].parse(found[1]))
    # A name may end in such a word (RTX 4090): the count stands apart from it.
    if found := re.fullmatch(r"\s*(.+?)\s+[xX]\s?(\d{1,3})\s*", gpu):
        return found[1], int(REQUEST_FIELDS["gpus"].parse(found[2]))
    if found := re.fullmatch(r"\s*(.*\d)[xX*](\d{1,2})\s*", gpu):
        return found[1], int(REQUEST_FIELDS["gpus"].parse(found[2]))
    if ":" not in gpu or "," in gpu or "mig" in gpu.lower():
        return gpu, None
    name, _, count = gpu.rpartition(":")
    if not name.strip():
        raise UsageError(f"gpu '{show(gpu)}' names no card before ':'")
    return name.strip(), int(REQUEST_FIELDS["gpus"].parse(count))
