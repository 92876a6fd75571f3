"""Over how many GPUs one batch is divided, beside the GPUs that each have a batch of their own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parallel:
    """``tensor``: GPUs that divide heads, feed-forward features and vocabulary; ``context``:
    those that divide each sequence.  ``replicas``: copies of what HSDP divides; ``None`` for one on each
    node.  ``hpz``: GPUs over which ZeRO-3 divides a second copy of the weights, from which it gathers in
    backward (ZeRO++); 1 for none.
    """

    tensor: int = 1
    context: int = 1
    replicas: int | None = None
    hpz: int = 1

    @property
    def gpus(self) -> int:
        """GPUs that work on one batch."""
        return self.tensor * self.context

    @property
    def divides(self) -> bool:
        """Whether a batch has several GPUs."""
        return self.gpus > 1


ALONE = Parallel()
"""Every batch has one GPU."""
