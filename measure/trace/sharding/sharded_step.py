"""The modules' side of a sharded step: micro-steps that hand each gradient over as it comes,
with marks for the runtime.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from typing import Any

import torch

from measure.recipe.adapters import DTYPES, is_of_adapters
from measure.recipe.optimizers import parameter_groups
from measure.trace.cuda.quantized import is_packed
from measure.trace.record import ParameterNote
from measure.trace.sharding.flat_units import FlatHooks, make_flat_units, marking_waits
from measure.trace.sharding.fsdp_units import TracedUnit, UnitHooks, make_units, tower_units, unit_of
from measure.trace.sharding.marks import mark_gradients, put_mark
from measure.trace.sharding.module_hooks import hook_modules
from measure.trace.sharding.runtime_settings import flat_settings, makes_buckets_early
from measure.trace.sharding.sharded_parameters import FROZEN
from measure.trace.sharding.zero3_linear import linear_of_zero3
from measure.trace.tracer import Recorder
from measure.trace.trainer_step import BackwardHooks, Inputs, losses_of, micro_step, prepare
from planner.domain.scenario import Scenario


def cast_for_engine(model: Any, scenario: Scenario) -> None:
    """The dtypes that the modules compute with: 16-bit throughout where the precision is mixed,
    and no autocast.

    ZeRO-3 leaves adapters as PEFT made them where the base was made inside ``zero.Init``, which k-bit ones
    are not, but for versions of DeepSpeed before 0.19.2.  Packed k-bit matrices stay as they are.
    Source: DeepSpeed 0.19.8 runtime/engine.py ``_cast_module_mixed_precision``; the switch
    ``zero3_casts_adapters``; torch 2.13 distributed/fsdp MixedPrecisionPolicy.
    """
    recipe = scenario.recipe
    if not recipe.numerics.mixed:
        return
    dtype = DTYPES[recipe.numerics.compute_dtype]
    was_divided = recipe.sharding.is_zero3 and recipe.numerics.quantization == "none"
    keeps_adapters = was_divided and not scenario.stack.zero3_casts_adapters
    for name, tensor in model.named_parameters():
        adapter = is_of_adapters(name)
        tensor.stored_bytes = tensor.element_size()
        if tensor.is_floating_point() and not is_packed(tensor) and not (adapter and keeps_adapters):
            tensor.data = tensor.data.to(dtype)


def run_sharded_step(
    model: Any, scenario: Scenario, recorder: Recorder, layer_list: str, reference: Any = None
) -> None:
    """The micro-steps; what lies between them is the runtime's,
    which is executed over the records afterwards.

    ``reference``: the model that a policy is compared with, which an engine of its own divides.
    """
    recipe = scenario.recipe
    prepare(model, scenario)
    if reference is not None:
        prepare(reference, scenario)
        note_parameters(reference, recorder, [])
        hook_modules(reference, recorder)
    units = _units_of(model, scenario, layer_list)
    note_parameters(model, recorder, units, one_group=scenario.stack.one_optimizer_group)
    is_flat = recipe.uses_fsdp and not recipe.sharding.dtensors
    if recipe.sharding.is_zero3:
        hook_modules(model, recorder)
    batch = Inputs(scenario, model.config.get_text_config().vocab_size)
    losses = losses_of(model, reference, scenario, recorder)
    mark_gradients(model, recorder)
    hooks = _flat_hooks(model, units, recorder, scenario) if is_flat else UnitHooks(model, units, recorder)

    def begins() -> None:
        if recipe.sharding.is_zero3 and recipe.has_own_loss:
            # Trainers of preferences read their metrics before.
            put_mark(recorder, "host_waits", "")
        if makes_buckets_early(scenario):
            put_mark(recorder, "start_of_backward", "")

    def ended() -> None:
        hooks.end_of_backward()
        put_mark(recorder, "end_of_backward", "")

    with (
        recorder,
        linear_of_zero3() if recipe.sharding.is_zero3 else nullcontext(),
        marking_waits(recorder) if is_flat or recipe.sharding.is_zero3 else nullcontext(),
    ):
        for number in range(4 if int(recipe.batch.grad_accum) > 1 else 2):
            micro_step(model, recorder, number, batch, BackwardHooks(begins, ended), losses)
        recorder.close()


def _flat_hooks(model: Any, units: list[TracedUnit], recorder: Recorder, scenario: Scenario) -> FlatHooks:
    settings = flat_settings(scenario)
    return FlatHooks(model, units, recorder, shards_fp32=settings.mixed, prefetches=settings.prefetches)


def _units_of(model: Any, scenario: Scenario, layer_list: str) -> list[TracedUnit]:
    """What FSDP gathers together; nothing under another engine."""
    recipe, stack = scenario.recipe, scenario.stack
    if not recipe.uses_fsdp:
        return []
    sees = scenario.model.vision is not None and stack.tower_units != "in_root"
    towers = tower_units(model, layer_list, named=stack.tower_units == "layers") if sees else []
    if recipe.sharding.dtensors:
        units = make_units(model, layer_list, stack.fsdp2_units)
        units[0].stays_whole |= stack.fsdp2_root_stays
        return [*units, *towers]
    apart = stack.fsdp1_wraps_adapters and recipe.adapter is not None
    return [*make_flat_units(model, layer_list, wraps_adapters=apart), *towers]


def note_parameters(
    model: Any, recorder: Recorder, units: list[TracedUnit], *, one_group: bool = False
) -> None:
    """Say on the block of each parameter which one it is; ``units`` are those of FSDP, ``one_group``:
    the optimizer has all in one.
    """
    n_names = Counter(tensor for _, tensor in model.named_parameters(remove_duplicate=False))
    numbers: dict[torch.Tensor, int] = {}
    for number, group in enumerate(parameter_groups(model, one=one_group)):
        numbers |= dict.fromkeys(group, number)
    for number, (full_name, tensor) in enumerate(model.named_parameters()):
        block = recorder.block_of(tensor)
        if block is not None:
            module, _, name = full_name.rpartition(".")
            unit = unit_of(module, units) if units else None
            block.parameter = ParameterNote(
                name,
                tuple(tensor.shape),
                tensor.element_size(),
                numbers.get(tensor, FROZEN),
                "" if unit is None else unit.place,
                unit is not None and unit.stays_whole,
                getattr(tensor, "stored_bytes", tensor.element_size()),
                tensor.is_floating_point(),
                n_names[tensor],
                getattr(tensor, "in_graph", False),
                number,
            )
