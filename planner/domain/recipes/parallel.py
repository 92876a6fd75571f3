"""Over how many GPUs one batch is divided, beside the GPUs that each have a batch of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Schedule = Literal["1f1b", "interleaved", "gpipe", "in_turn"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)[:-1]
"""In which order a GPU of a pipeline runs its micro-batches; ``in_turn``: one process drives all GPUs,
and only one of them works at a time.
"""
DEVICE_MAPS = ("auto",)
"""How one process spreads layers over its GPUs, by Accelerate's word."""
End = Literal["table", "norm", "head"]
"""What lies around the layers: token table, last norm, head with the loss."""
TABLE, NORM, HEAD = ENDS = get_args(End)


@dataclass(frozen=True, slots=True)
class Parallel:
    """``tensor``: GPUs that divide heads, feed-forward features and vocabulary; ``context``: those that
    divide each sequence.  ``layers``: of each run in the order of the model, where the software says
    them; else :meth:`layers_of_stages`.  ``replicas``: copies of what HSDP divides; ``None`` for one on
    each node.  ``hpz``: GPUs over which ZeRO-3 divides a second copy of the weights, from which it
    gathers in backward (ZeRO++); 1 for none.  ``pipeline``: groups of GPUs that each have some of the
    layers, which run ``microbatches`` by ``schedule`` before gradients are reduced; ``None`` for all of a
    step. With schedule ``in_turn`` a group is one GPU, and one process has them all (``device_map``).
    ``experts``: GPUs that divide the experts of each layer, each with a batch of its own;
    ``expert_tensor``: those that divide the features of each expert.  ``runs``: of layers that each group of
    an interleaved pipeline has.
    """

    tensor: int = 1
    context: int = 1
    replicas: int | None = None
    hpz: int = 1
    pipeline: int = 1
    schedule: Schedule = "1f1b"
    microbatches: int | None = None
    experts: int = 1
    expert_tensor: int = 1
    runs: int = 2
    layers: tuple[int, ...] = ()

    @property
    def gpus(self) -> int:
        """GPUs that work on one batch."""
        return self.tensor * self.context * self.pipeline

    @property
    def expert_gpus(self) -> int:
        """GPUs that divide the experts of a layer, or features of each."""
        return self.experts * self.expert_tensor

    @property
    def divides(self) -> bool:
        """Whether a batch has several GPUs."""
        return self.gpus > 1

    @property
    def in_turn(self) -> bool:
        """Whether one process spreads the layers over its GPUs, of which one works at a time."""
        return self.pipeline > 1 and self.schedule == "in_turn"

    @property
    def chunks(self) -> int:
        """Runs of layers that each group of a pipeline has.

        Source: torchtitan e347b1e5e distributed/pipeline_parallel.py pipeline_llm (``stages_per_rank``).
        """
        return self.runs if self.schedule == "interleaved" else 1

    def layers_of_stages(self, n_layers: int) -> tuple[int, ...]:
        """Layers of each run in the order of the model, where the token table counts as one, and so do norm
        and head together; the first runs have a layer more where they do not divide evenly.

        Source: torchtitan e347b1e5e distributed/pipeline_parallel.py generate_llm_fqn_per_model_part.
        """
        if self.layers:
            return self.layers
        each, more = divmod(n_layers + 2, self.pipeline * self.chunks)
        counts = [each + (number < more) for number in range(self.pipeline * self.chunks)]
        counts[0] -= 1
        counts[-1] -= 1
        return tuple(counts)


ALONE = Parallel()
"""Every batch has one GPU."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What group ``rank`` of ``ranks`` has of a pipeline: so many layers in each of ``chunks``.

    The first group has the token table, too, the last one norm and head.  Where GPUs work in turn, ``ends``
    says what each one has.
    """

    rank: int
    ranks: int
    chunks: tuple[int, ...]
    schedule: Schedule
    microbatches: int
    ends: tuple[End, ...] = ()

    @property
    def in_turn(self) -> bool:
        """Whether it is one of the GPUs of one process."""
        return self.schedule == "in_turn"

    def has(self, end: End) -> bool:
        """Whether this part of the model is there."""
        if self.in_turn:
            return end in self.ends
        return self.rank == (0 if end == TABLE else self.ranks - 1)
