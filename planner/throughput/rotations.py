"""The time of OFT's rotations beside what is done for each token: making them of trained numbers,
once for each pass.
"""

from __future__ import annotations

from planner.domain.recipe import Number
from planner.throughput.job import Job

# Accesses of one element of all rotations in the adapter's dtype and in that of products.  Forward: zeros,
# triangle, difference (3), repeated identity, sums in place (3 2 2 2 and one read each but the first), casts
# of products (4, and one of the result), three products (3 each).  Backward: casts (5 each way), six products
# and that of the tokens, multiplied by two (2 each, three times), sums (15 and 6), negative (2), index.
_FORWARD_ACCESSES, _BACKWARD_ACCESSES = (20, 17), (32, 33)
_PRODUCTS_FORWARD, _PRODUCTS_BACKWARD = 3, 6


def rotation_seconds(job: Job, forward: Number, backward: Number, tokens: Number) -> Number:
    """OFT's products, and all operators on its rotations;
    seconds for so many forward and backward passes over ``tokens``.

    Formula: ``2 in b`` FLOP per token and forward pass, twice that backward; ``2 in b^2`` for each product of
    the series, three forward and six backward; bytes of every operator on the ``in b`` elements of a
    rotation.
    Source: peft 0.21 ``tuners/oft/layer.py`` OFTRotationModule.forward,
    its operators listed by ``TorchDispatchMode``.
    """
    sums, regime, rates = job.profile.rotations, job.regime, job.rates
    product = regime.compute if regime.autocast else regime.adapter_seen
    flop = 2 * sums.elements * tokens * (forward + 2 * backward)
    flop = flop + 2 * sums.cubes * (_PRODUCTS_FORWARD * forward + _PRODUCTS_BACKWARD * backward)
    each = [
        wide * regime.adapter_seen + narrow * product
        for wide, narrow in (_FORWARD_ACCESSES, _BACKWARD_ACCESSES)
    ]
    moved = sums.elements * (each[0] * forward + each[1] * backward)
    return flop / rates.adapter_flop_per_s + moved / rates.memory_bytes_per_s
