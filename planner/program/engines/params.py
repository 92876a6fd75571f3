"""The parameters of a job one by one, as an engine that divides them sees them.

Engines decide by numbers of elements, so sizes are numbers here: the job has the rank of its adapters, of
which a grid's largest counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.arrays import largest
from planner.domain.mixer_specs import Mamba1Spec, Mamba2Spec
from planner.domain.term import TermName
from planner.program.job import Job
from planner.program.load import engine_dtypes, prepared_dtype
from planner.program.ops.sizes import unit_values
from planner.program.ops.tensors import ELEMENT_BYTES, InGraph, Unit
from planner.program.parameters import SEEING, adapter_weights, model_weights
from planner.program.request_stream import labelled
from planner.program.runtime import Part

AT_REST = "at rest"
"""The part of the parameters that nothing reads."""


@dataclass(slots=True, eq=False)
class Param:
    """One parameter.

    ``number``: place in the model.  ``element_bytes``: as modules compute with it.  ``decays``: in the first
    group of the optimizer, which has weight decay.  ``place``: part of the model and module.  ``in_graph``:
    as in :class:`planner.program.ops.tensors.Parameter`.
    """

    number: int
    elements: int
    element_bytes: int
    trained: bool
    decays: bool
    place: tuple[str, str]
    term: TermName
    in_graph: InGraph = ""

    @property
    def n_bytes(self) -> int:
        """Bytes of the whole parameter."""
        return self.elements * self.element_bytes


def params_of(job: Job, parts: Sequence[Part]) -> dict[str, list[Param]]:
    """The parameters of each part by the part's name, in the order of the code.

    A head that is tied to the token table has the table's parameter.  A tower that does not run is a part
    of its own, ``AT_REST``.
    """
    values, vector = largest_units(job), _longest_vector(job)
    made = {AT_REST: _at_rest(job, values)}
    n_made = len(made[AT_REST])
    for label, template in labelled((part.name, part.template, part.count) for part in parts):
        own = made[label] = []
        for each in template.parameters:
            module = ".".join(template.modules[each.module])
            elements = round(each.count * values[each.unit])
            if (
                job.model.tied
                and label == "head"
                and not each.trained
                and elements == made["embeddings"][0].elements
            ):
                own.append(made["embeddings"][0])
                continue
            decays = each.unit is not Unit.ONE or elements > vector
            term: TermName = "adapters" if each.trained and job.recipe.adapter is not None else "weights"
            own.append(
                Param(
                    n_made,
                    elements,
                    ELEMENT_BYTES[each.dtype],
                    each.trained,
                    decays,
                    (label, module),
                    term,
                    each.in_graph,
                )
            )
            n_made += 1
    return made


def _at_rest(job: Job, values: dict[Unit, float]) -> list[Param]:
    """What no part of the step reads: a tower and its projector where there are no images."""
    if job.model.vision is None or job.recipe.batch.images is not None:
        return []
    weights = [each for each in (*model_weights(job), *adapter_weights(job)) if each.name.startswith(SEEING)]
    for each in weights:
        each.dtype = prepared_dtype(job, each)
    dtypes = engine_dtypes(job, weights)
    made = []
    for number, each in enumerate(weights):
        elements = round(each.count * values[each.unit])
        width = ELEMENT_BYTES[dtypes.get(id(each), each.dtype)]
        if each.packed:
            elements, width = packed_elements(job, elements)
        term: TermName = "adapters" if each.adapter else "weights"
        place = (each.name, "")
        made.append(Param(number, elements, width, each.requires_gradient, each.decays, place, term))
    return made


def largest_units(job: Job) -> dict[Unit, float]:
    """The number of each unit; of a grid the largest."""
    return {unit: largest(value) for unit, value in unit_values(job).items()}


def optimizer_groups(job: Job, trained: list[Param]) -> list[list[Param]]:
    """The groups of the Trainer's optimizer: what decays, then the rest; one of all where DeepSpeed makes it.

    Source: transformers 5.23 trainer.py create_optimizer.
    """
    if job.stack.one_optimizer_group:
        return [trained]
    groups = [[each for each in trained if each.decays == decays] for decays in (True, False)]
    return [group for group in groups if group]


def _longest_vector(job: Job) -> int:
    """Elements of the longest bias or norm, which have no weight decay; a convolution has more.

    Source: transformers 5.23 trainer.py get_decay_parameter_names.
    """
    model = job.model
    norms = [norm.width for group in model.groups for norm in group.block.norms]
    linears = [linear for group in model.groups for linear in group.block.linears]
    biases = [linear.out_features for linear in (*linears, model.head) if linear.bias]
    mixers = [group.block.mixer for group in model.groups]
    spaces = [each for each in mixers if isinstance(each, Mamba1Spec | Mamba2Spec)]
    biases += [each.conv_width for each in spaces if each.conv_bias]
    return max(*norms, *biases, *(norm.width for norm in model.final_norms))


def packed_elements(job: Job, elements: int) -> tuple[int, int]:
    """Elements of a packed matrix as an engine counts them, and the bytes of each:
    those of the dtype it is stored in.

    Source: bitsandbytes 0.50 nn/modules.py Params4bit (``quant_storage``).
    """
    numerics = job.recipe.numerics
    n_bytes = elements if numerics.quantization == "int8" else elements // 2
    width = 1 if numerics.quant_storage is None else ELEMENT_BYTES[numerics.quant_storage]
    return n_bytes // width, width
