"""Which parameters the Trainer's optimizer has in the group without weight decay."""

from __future__ import annotations

import pytest

from planner.program.engines.params import params_of
from planner.program.step import parts_of
from tests.jobs import job_by

# LFM2: two norms of 1,024 in each of 16 layers and one behind them; of six layers those of queries and keys.
LFM2 = 16 * 2 * 1024 + 1024 + 6 * 2 * 64
# Phi-2: weight and bias of one norm in each of 32 layers and behind them, six biases, and that of the head.
PHI2 = 33 * 2 * 2560 + 32 * (5 * 2560 + 10_240) + 51_200


@pytest.mark.parametrize(("model", "without"), [("lfm2-350m", LFM2), ("phi-2", PHI2)])
def test_norms_and_biases_have_no_decay_and_convolutions_have(model: str, without: int) -> None:
    """A convolution's weight is no wider than a matrix; the bias of a head is wider than a norm."""
    flags = {"method": "full", "sharding": "zero1", "gpu": "a100-80-sxm:4", "seq": 64, "batch": 1}
    job = job_by({"model": model, **flags})
    found = [each for part in params_of(job, parts_of(job)).values() for each in part]
    assert sum(each.elements for each in found if not each.decays) == without
