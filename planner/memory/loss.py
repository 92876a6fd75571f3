"""Where the loss has its peak: at the end of the forward, or in its own backward."""

from __future__ import annotations

from dataclasses import dataclass

from planner.arrays import is_zero, maximum, where
from planner.domain.recipe import Number
from planner.memory import logits
from planner.memory.activations import norm_output_bytes
from planner.memory.weights import autocast_copy_bytes
from planner.program.job import Job


@dataclass(frozen=True, slots=True)
class LossMoment:
    """Bytes alive at the peak of the loss: ``logits`` and what is made of them, ``copies`` of weights in autocast's cache.

    ``idle_copies``: what the emptied cache adds to the most that is reserved.
    """

    logits: Number
    copies: Number
    idle_copies: Number


@dataclass(frozen=True, slots=True)
class LossBytes:
    """Bytes of logits and loss at its two moments, worked out once for all that lies beside them.

    ``forward``: logits, loss and the norm's output when the forward ends, ``cached`` copies of weights apart.  ``backward``: what
    is alive in the backward of the loss.  ``moment``: the fuller of the two.
    """

    forward: Number
    backward: Number
    cached: Number
    moment: LossMoment

    def beside(self, in_backward: Number = 0, in_forward: Number = 0) -> Number:
        """Bytes that the logits' peak grows by, beside what is there in the backward of the loss only, or until the forward ends.

        Source: as of :func:`loss_moment`.
        """
        if is_zero(in_backward) and is_zero(in_forward):
            return 0
        return loss_moment(self.forward + in_forward, self.backward + in_backward, self.cached).logits - self.moment.logits


def loss_bytes(job: Job) -> LossBytes:
    """Both moments of the loss, and the fuller one.

    Source: as of :func:`loss_moment`; the amounts are those of :mod:`planner.memory.logits`.
    """
    cached = cached_copy_bytes(job)
    forward = logits.logits_forward_bytes(job) + norm_output_bytes(job)
    backward = logits.logits_backward_bytes(job) + logits.normhead_backward_bytes(job)
    backward = maximum(backward, logits.head_backward_bytes(job))
    return LossBytes(forward, backward, cached, loss_moment(forward, backward, cached))


def loss_moment(forward: Number, backward: Number, cached: Number) -> LossMoment:
    """The fuller of two moments: logits and loss at the end of the forward, and the backward of the loss.

    ``forward`` and ``backward``: bytes of logits and loss at each; ``cached``: copies of weights that autocast holds in the
    first.

    Autocast ends with the forward and empties its cache of weight copies; those of recomputed layers are nowhere else.  In the
    backward of the loss, and in that of the head, they are gone, as is the norm's output.
    Source: torch 2.13 amp/autocast_mode.py autocast.__exit__ (``clear_autocast_cache``); accelerate 1.15 accelerator.py
    prepare_model wraps the model's forward in autocast.
    """
    ahead = forward + cached >= backward
    # Logits and their gradients do not fit into blocks of weights: the emptied cache is reserved beside the fuller of the two.
    idle = cached + maximum(forward, backward) - maximum(forward + cached, backward)
    return LossMoment(where(ahead, forward, backward), where(ahead, cached, 0), idle)


def cached_copy_bytes(job: Job) -> Number:
    """Autocast's copies of the weights of layers that are recomputed in backward: only its cache holds them.

    Source: torch 2.13 aten/src/ATen/autocast_mode.cpp cached_cast; utils/checkpoint.py saves nothing of a recomputed layer.
    """
    return autocast_copy_bytes(job) * job.recipe.rebuilt_share(job.model.n_layers)
