"""ReLoRA's restart: the product of the factors is added to the base, one matrix after the other.

It happens before a step begins, when there are neither activations nor gradients;
the largest matrix takes the most.
Source: axolotl fbe54be6b (2025-03) monkeypatch/relora.py merge_and_save, lora_delta_weight, update_weights;
peft 0.21 tuners/lora/layer.py get_delta_weight.
Ignored: what pruning the optimizer's states takes, twice a state of one factor.
"""

from __future__ import annotations

from planner.anatomy.adapted_matrices import is_adapted
from planner.domain.recipes.recipe import DTYPE_BYTES, Adapter
from planner.program.job import Job
from planner.program.ops.tensors import Unit
from planner.program.request_stream import RequestStream


def merge_adapters(stream: RequestStream, job: Job, adapter: Adapter) -> None:
    """The product and what it is scaled to;
    over a quantised base also the weight of the file and the sum, which is packed.
    """
    linears = (
        linear
        for group in job.model.groups
        for linear in group.block.linears
        if is_adapted(linear, adapter.targets)
    )
    largest = max((linear.in_features * linear.out_features for linear in linears), default=0)
    width = DTYPE_BYTES[adapter.dtype]

    def new(element_bytes: float, op: str) -> int:
        place = ("optimizer", "relora", op)
        return stream.allocate(Unit.ONE, element_bytes * largest, "optimizer_temporaries", place)

    product = new(width, "mm")
    delta = new(width, "mul")
    stream.free(product)
    if job.recipe.numerics.quantization == "none":
        stream.free(delta)
        return
    stored = new(DTYPE_BYTES[job.model.checkpoint_dtype], "to")
    merged = new(max(width, DTYPE_BYTES[job.model.checkpoint_dtype]), "add")
    for slot in (stored, delta):
        stream.free(slot)
    again = new(width, "to")
    for slot in (merged, again):
        stream.free(slot)
