"""The question: model, hardware, recipe and stack, with the origin of every resolved value."""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.domain import origin as origins
from planner.domain.hardware import Hardware
from planner.domain.model import ModelSpec
from planner.domain.recipes.recipe import Number, Recipe
from planner.domain.stack import Stack

TRAINER_BATCH = 8
"""Samples of a micro-step where nobody gives any to the Trainer: transformers 5.23.0 training_args.py."""
EVAL_BATCH = 8
"""Samples of one evaluation step where nobody says any: transformers 5.23.0 training_args.py."""
CUDNN_HEADS = {"9.0": 256, "10.0": 128, "10.3": 128}
"""Where torch asks cuDNN's attention first, by compute capability, and the widest heads that this takes.

Source: torch 2.13 ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` check_prefer_cudnn_attention,
check_cudnn_tensor_shapes.
"""


def segments_grow(stack: Stack, n_gpus: int, n_nodes: int = 1, *, deepspeed: bool = False) -> bool:
    """Whether the allocator's segments grow in a job on so many GPUs of all nodes together."""
    grow = {"one_node": n_nodes == 1, "several_gpus": n_gpus > 1, "torchrun": (n_gpus > 1) | deepspeed}
    return grow.get(stack.expandable_segments, stack.expandable_segments == "on")


@dataclass(frozen=True, slots=True)
class Assumption:
    """One resolved value.  ``origin`` (:mod:`planner.domain.origin`) is for people:
    code asks the properties.
    """

    name: str
    value: str
    origin: str
    note: str = ""

    @property
    def is_assumed(self) -> bool:
        """Whether nobody gave the value: it is our assumption, or what the stack does by itself."""
        return origins.is_assumed(self.origin)

    @property
    def is_tool_default(self) -> bool:
        """Whether the value is what the tool of a config file does where the file is silent."""
        return origins.is_tool_default(self.origin)

    @property
    def is_from_catalog(self) -> bool:
        """Whether the catalog holds the value."""
        return self.origin == origins.CATALOG

    @property
    def is_from_data(self) -> bool:
        """Whether it follows from the lengths of the data set."""
        return self.origin == origins.DATA


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Length and price of the whole run; ``None`` where the user does not say.
    ``usd_per_gpu_hour`` is per GPU.

    ``eval_samples`` are evaluated after each epoch, ``eval_micro_batch`` at a time on each GPU.  Without
    either, memory counts an evaluation of as many samples at a time as are trained on.
    """

    n_samples: int | None = None
    epochs: float = 1.0
    usd_per_gpu_hour: float | None = None
    eval_samples: int | None = None
    eval_micro_batch: int | None = None

    @property
    def evaluates(self) -> bool:
        """Whether an evaluation is asked for, by its samples or by how many it takes at a time."""
        return self.eval_samples is not None or self.eval_micro_batch is not None


@dataclass(frozen=True, slots=True)
class Scenario:
    """Every choice that changes memory or time.  The instruments answer it;
    ``warnings`` are combinations that people do run.

    ``whole_model`` and ``whole_second`` (a reward model or a teacher): the models as they were looked up, of
    which this stack and task load and train a part.
    """

    model: ModelSpec
    hardware: Hardware
    recipe: Recipe
    stack: Stack
    run: RunPlan = field(default_factory=RunPlan)
    assumptions: tuple[Assumption, ...] = ()
    warnings: tuple[str, ...] = ()
    whole_model: ModelSpec | None = field(default=None, repr=False, compare=False)
    whole_second: ModelSpec | None = field(default=None, repr=False, compare=False)

    @property
    def segments_grow(self) -> bool:
        """Whether the allocator's segments grow, as the stack starts such a job."""
        hardware, deepspeed = self.hardware, self.recipe.uses_deepspeed
        return segments_grow(self.stack, hardware.world_size, hardware.nodes, deepspeed=deepspeed)

    @property
    def batches_at_once(self) -> Number:
        """Micro-batches that all GPUs work on together: as many as GPUs, where none of them share one."""
        return self.hardware.world_size // self.recipe.parallel.gpus

    @property
    def allocator_settings(self) -> str:
        """What the stack sets of torch's allocator in this job, as in ``PYTORCH_CUDA_ALLOC_CONF``."""
        divisions, most = self.stack.roundup_divisions, self.stack.max_split_mib
        said = (
            ("expandable_segments:True", self.segments_grow),
            (f"roundup_power2_divisions:{divisions}", divisions),
            (f"max_split_size_mb:{most}", most),
        )
        return ",".join(text for text, is_set in said if is_set)

    @property
    def reads_head(self) -> bool:
        """Whether the loss reads the weight of the head and does not call it, so that no hook of it runs.

        Source: trl 1.16.0 trainer/utils.py add_fused_lm_head.
        """
        return self.recipe.loss == "chunked" and (
            self.recipe.has_own_loss or self.stack.loss_pieces == "tiles"
        )

    @property
    def runs_cudnn(self) -> bool:
        """Whether torch's fused attention asks cuDNN's kernels first, with a mask, too."""
        prefers = self.stack.cudnn_attention and self.hardware.gpu.compute_capability in CUDNN_HEADS
        return prefers and self.recipe.attention == "sdpa" and self.stack.sdpa_kernel == "any"

    def assumption(self, name: str) -> Assumption | None:
        """The entry of one field; ``None`` where none was made."""
        return next((each for each in self.assumptions if each.name == name), None)
