"""How far the host runs ahead of the card before FSDP1 and ZeRO-3 make it wait:
the limits that the program counts late frees by are the libraries' own.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from planner.program.engines.fsdp.fsdp1 import _GATHER_LAG as FLAT_PARAMETERS
from planner.program.engines.fsdp.fsdp1 import _GRADIENT_LAG as FLAT_GRADIENTS
from planner.program.engines.zero.coordinator import _MOST_FETCHES as MODULES
from planner.program.engines.zero.zero3 import _GRADIENT_LAG as BUCKETS
from tests.extras import import_or_skip


def test_fsdp1_waits_for_the_older_of_two_frees() -> None:
    """What remains in the queue when a gather begins is still in use."""
    made: Any = import_or_skip("torch.distributed.fsdp._limiter_utils")._FreeEventQueue()
    frees, waited = list(range(10)), []
    for number in frees:
        made.enqueue(number)
        waited.append(made.dequeue_if_needed())
    last = max(each for each in waited if each is not None)
    # The gradient of the last one that was waited for is about to be reduced, and so are those behind it.
    assert frees[-1] - last == FLAT_PARAMETERS == FLAT_GRADIENTS - 1


def test_zero3_waits_for_the_third_gather_and_the_third_bucket_before() -> None:
    """As many as may be under way, and the one that the host has waited for, which is used from then on."""
    for module, name, lag in (
        ("partitioned_param_coordinator", "max_ongoing_fetch_events", MODULES + 1),
        ("stage3", "max_param_reduce_events", BUCKETS),
    ):
        source = inspect.getsource(import_or_skip(f"deepspeed.runtime.zero.{module}"))
        (most,) = re.findall(rf"{name}: int = (\d+)", source)
        assert re.search(rf"_events\) > self\.\w*{name}:\s+self\.\w+\.popleft\(\)\.synchronize\(\)", source)
        assert lag == int(most) + 1


def test_zero3_waits_at_the_end_of_each_backward_and_for_the_norm() -> None:
    """The stream that reduces has waited for the one that computes; a question to a tensor waits for it."""
    stage_3 = inspect.getsource(import_or_skip("deepspeed.runtime.zero.stage3"))
    epilogue = stage_3.split("def independent_gradient_partition_epilogue")[1].split("\n    def ")[0]
    assert "self.reduce_and_partition_stream.synchronize()" in epilogue
    step = stage_3.split("    def step(self")[1].split("\n    def ")[0]
    released, asked, updated = (
        step.index(each)
        for each in ("_partition_all_parameters()", "is_invalid_grad_norm(", "self._prepare_sub_group(")
    )
    assert released < asked < updated
    norm = inspect.getsource(import_or_skip("deepspeed.runtime.utils").is_invalid_grad_norm)
    assert "bool(" in norm
