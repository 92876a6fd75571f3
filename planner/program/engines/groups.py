"""What FSDP gathers together, and the sizes of whole parameters and of their shards.

Ignored: the rank of LoRA may not be divisible by the number of GPUs,
and the shards of adapters are then larger.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import ceil

from planner.domain.recipes.fp8 import GATHERED_FP8, MULTIPLE
from planner.domain.term import TermName
from planner.program.job import Job
from planner.program.load import constants, load_whole, prepared_dtype, take_workspaces
from planner.program.ops.tensors import ELEMENT_BYTES, Dtype, Unit
from planner.program.parameters import Shape, Weight, adapter_weights, model_weights
from planner.program.request_stream import Instance, RequestStream
from planner.program.update.states import rank_of

ROOT, TABLE, TAIL = "root", "table", "tail"
EMBEDDINGS, HEAD = "embeddings", "head"
"""Names of the parts around the layers."""


@dataclass(frozen=True, slots=True)
class Gradient:
    """The whole gradient of one parameter of ``module``."""

    module: str
    elements: float
    dtype: Dtype
    slot: int


@dataclass(slots=True)
class Group:
    """Parameters that are gathered together.  ``stays``: whole from its forward to its backward.
    ``n``: processes that they are divided over.

    ``seen_bytes``: of each whole parameter; ``whole_bytes``: of all of them; ``shard_bytes``: of this GPU's
    part; ``cast_bytes``: of whole parameters whose shards are wider than what layers see.  ``gradients`` wait
    to be reduced; ``sums``, those of earlier micro-steps, in fp32.  Slots: ``received``, the buffer that
    parameters arrive in; ``whole``, these parameters; ``flat``, their gradients in one tensor; ``reduced``,
    this GPU's part of them.
    """

    weights: list[Weight]
    stays: bool = False
    n: int = 1
    seen_bytes: list[float] = field(default_factory=list)
    whole_bytes: float = 0.0
    shard_bytes: float = 0.0
    cast_bytes: float = 0.0
    received: int | None = None
    whole: list[int] = field(default_factory=list)
    gradients: list[Gradient] = field(default_factory=list)
    sums: list[Gradient] = field(default_factory=list)
    flat: int | None = None
    reduced: int | None = None

    @property
    def narrows(self) -> bool:
        """Whether shards are cast to be gathered."""
        return self.cast_bytes > 0


class Sizes:
    """Dtypes and sizes of parameters under FSDP, over ``n`` processes.  ``gathers_fp8``: whether matrices of
    layers travel in 8 bits.

    Those of experts that are divided over ``job.model.expert_parts`` of them are divided over fewer:
    along experts, and where torchtitan would have more processes than experts, along the rows of each.
    Source: torchtitan e347b1e5e distributed/parallel_dims.py build_mesh (``efsdp``),
    models/llama4/infra/parallelize.py apply_fsdp (``_experts_shard_placement_fn``).
    """

    def __init__(self, job: Job) -> None:
        numerics = job.recipe.numerics
        self._job, self._mixed = job, numerics.mixed and job.stack.fsdp2_casts != "never"
        kbit = numerics.quantization != "none"
        apart = kbit and (job.recipe.sharding.dtensors or not comes_whole(job))
        narrow = job.recipe.sharding.dtensors and not job.stack.fsdp2_widens
        self._widens = numerics.mixed and not (apart or narrow)
        self._compute_dtype = numerics.compute_dtype
        self.n = int(job.recipe.shards(job.hardware))
        self._rank = rank_of(job)
        self._cuts_rows = job.recipe.sharding.dtensors
        experts = [
            linear
            for group in job.model.groups
            for linear in group.block.linears
            if linear.group == "expert" and job.model.expert_parts > 1
        ]
        self._experts = frozenset(linear.name for linear in experts)
        self._of_experts = self.n // job.model.expert_parts
        own = bool(experts) and job.stack.model_code == "own"
        self._along_rows = own and self._of_experts > min(linear.copies for linear in experts)
        self.gathers_fp8 = numerics.fp8 == GATHERED_FP8

    def parts(self, weight: Weight) -> int:
        """Over how many processes a parameter is divided."""
        return self._of_experts if self.is_of_experts(weight) else self.n

    def along_rows(self, weight: Weight) -> bool:
        """Whether a parameter is divided along its second dimension, of which parts are put together by a
        copy.
        """
        return self._along_rows and self.is_of_experts(weight)

    def is_of_experts(self, weight: Weight) -> bool:
        """Whether a parameter is one of experts that GPUs divide."""
        # Most jobs divide no experts, and large models have a hundred thousand parameters.
        if not self._experts or weight.outside or not weight.stacked:
            return False
        return weight.name.split()[2] in self._experts

    def divides(self, weight: Weight) -> bool:
        """Whether a parameter is divided: of k-bit ones not all are."""
        return not weight.packed or self._job.recipe.divides_base

    def stored(self, weight: Weight) -> Dtype:
        """The dtype of a shard: fp32 where it is trained in mixed precision;
        not under FSDP2 where the base is of k-bit matrices.

        Source: accelerate 1.15 utils/fsdp_utils.py fsdp2_prepare_model and accelerator.py prepare_model,
        which widen trained 16-bit parameters; axolotl 0.19.0 monkeypatch/accelerate/fsdp2.py does not.
        """
        return "fp32" if weight.requires_gradient and self._widens else weight.dtype

    def seen(self, weight: Weight) -> Dtype:
        """The dtype in which layers see a parameter: packed ones travel as they are stored,
        and matrices of layers in 8 bits where they are cast before.
        """
        if self.gathers_fp8 and self._casts_to_fp8(weight):
            return "fp8"
        return self._compute_dtype if self._mixed and not weight.packed else weight.dtype

    def _casts_to_fp8(self, weight: Weight) -> bool:
        return (
            weight.kind == "matrix"
            and not weight.outside
            and all(length % MULTIPLE == 0 for _, length in weight.shape)
        )

    def seen_bytes(self, weight: Weight) -> float:
        """Bytes of the whole parameter, padded under FSDP2 so that all processes have equal parts."""
        return self.shard_elements(weight) * self.parts(weight) * ELEMENT_BYTES[self.seen(weight)]

    def stored_bytes(self, weight: Weight) -> float:
        """Bytes of the shard."""
        return self.shard_elements(weight) * ELEMENT_BYTES[self.stored(weight)]

    def shard_elements(self, weight: Weight) -> float:
        """Elements of the shard, or bytes of a packed one."""
        (_, rows), rank = weight.shape[0], self._rank if weight.unit is Unit.RANK else 1
        return weight.count / rows * self._part_of_rows(weight) * rank / self.in_a_byte(weight)

    def padding(self, weights: Iterable[Weight]) -> float:
        """Elements by which gradients are longer so that all processes have equal parts."""
        made = [each for each in weights if each.trained and not each.unread and each.unit is Unit.ONE]
        return sum(self.shard_elements(each) * self.parts(each) - each.count for each in made)

    def shard_bytes(self, weight: Weight) -> float:
        """Bytes of the part of one process for each of the parameter's unit, unpacked."""
        count: float = 1
        for _, length in self._shard_shape(weight):
            count *= length
        return count * ELEMENT_BYTES[self.stored(weight)]

    def in_a_byte(self, weight: Weight) -> int:
        """Elements in a byte of a packed parameter; 1 of others, which are counted in their dtype."""
        return 2 if weight.packed and self._job.recipe.numerics.quantization != "int8" else 1

    def _shard_shape(self, weight: Weight) -> Shape:
        """Divided along the first dimension.  Source: torch 2.13 _fsdp_param.py."""
        (unit, first), *rest = weight.shape
        if not self.along_rows(weight):
            return ((unit, self._part_of_rows(weight)), *rest)
        (_, rows), *rest = rest
        return ((unit, first), (unit, rows / self.parts(weight)), *rest)

    def shard(self, weight: Weight) -> Weight:
        """The part of one process."""
        shape, dtype = self._shard_shape(weight), self.stored(weight)
        flags = weight.trained, weight.outside, weight.packed, weight.adapter, weight.unread
        # Not ``replace``, which takes three times as long: large models have a hundred thousand of these.
        return Weight(weight.name, weight.kind, shape, dtype, *flags, slot=weight.slot)

    def _part_of_rows(self, weight: Weight) -> float:
        """Whole rows under FSDP2, which divides tensor by tensor; FSDP1 divides flat ones, wherever it falls.

        Source: torch 2.13 distributed/fsdp/_flat_param.py _init_flat_param_and_metadata, which pads the flat
        tensor alone.
        """
        unit, rows = weight.shape[0]
        n = self.parts(weight)
        whole = self._cuts_rows and unit is Unit.ONE and not weight.packed and not self.along_rows(weight)
        return ceil(rows / n) if whole else rows / n

    def gradients_of(self, part: Instance) -> Iterator[Gradient]:
        """The gradients that the backward pass of ``part`` made, in the order of its parameters."""
        for unit, count, dtype, slot, module in part.template.gradients:
            lies_at = part.slot(slot)
            if lies_at is not None:
                yield Gradient(module, count * (self._rank if unit is Unit.RANK else 1), dtype, lies_at)


def part_of(weight: Weight) -> str:
    """The layer of a parameter, or that of a vision tower; empty for those around the layers."""
    name = weight.name
    if name.startswith("tower layer "):
        return f"vision {' '.join(name.split(maxsplit=3)[1:3])}"
    return " ".join(name.split(maxsplit=2)[:2]) if name.startswith("layer ") else ""


def comes_whole(job: Job) -> bool:
    """Whether the model is on every card before it is divided: that of some stacks (``fsdp_loads``),
    a k-bit one of some versions of Transformers, and one of whose matrices the engine divides none.

    Buffers, as those of GPTQ and AWQ, go to the card of each process, wherever they waited.
    Source: torch 2.13 distributed/fsdp/_init_utils.py ``_move_states_to_device``.
    """
    stack, recipe = job.stack, job.recipe
    stays = stack.model_code != "own" and not recipe.divides_base
    loads_packed = recipe.numerics.quantization != "none" and (stays or not stack.kbit_waits_on_host)
    return loads_packed or stack.fsdp_loads == "whole"


def load_shards(stream: RequestStream, job: Job, sizes: Sizes) -> list[Weight]:
    """Each parameter whole, and then its shard, where the model is not on the card before.

    Gives the shards, and what is not divided.  Offloaded shards are on the host.
    Source: accelerate 1.15 utils/fsdp_utils.py fsdp2_load_full_state_dict, fsdp2_prepare_model
    (``model_has_params4bit``); torchtune 0.6.1 training/_distributed.py load_from_full_model_state_dict,
    which packs and divides one parameter at a time.
    """
    if comes_whole(job):
        weights = load_whole(stream, job)
        _divide(stream, job, sizes, [each for each in weights if sizes.divides(each)])
    else:
        stream.enter("load")
        weights = model_weights(job)
        for each in weights:
            each.dtype = prepared_dtype(job, each)
        _one_by_one(stream, job, sizes, weights)
        again = _tied_again(stream, job, sizes)
        adapters = adapter_weights(job)
        if adapters:
            stream.enter("adapters")
        _one_by_one(stream, job, sizes, adapters)
        stream.free(again)
        weights = weights + adapters
    begin_training(stream, job)
    return weights


def begin_training(stream: RequestStream, job: Job) -> None:
    """The model is divided; some loops of a stack's own give the cache back before they begin."""
    if job.stack.fsdp_empties:
        stream.empty_cache()
    stream.enter("forward")
    take_workspaces(stream, job)


def _divide(stream: RequestStream, job: Job, sizes: Sizes, weights: Iterable[Weight]) -> None:
    """Weights that are on the card leave their shards there, one after the other.

    Under FSDP2 of Accelerate a state dict has all of a 4-bit model until its last shard is there: 1.15
    utils/fsdp_utils.py fsdp2_prepare_model (``original_sd``).
    """
    keeps = job.recipe.sharding.dtensors and job.stack.model_code != "own"
    keeps = keeps and job.recipe.numerics.quantization != "none"
    whole = []
    for each in sorted(weights, key=lambda each: each.slot):
        shard = _keep_shard(stream, sizes, each)
        if job.recipe.offloads_params:
            stream.free(shard)  # torch 2.13 _fsdp_param.py _init_sharded_param: then it goes to the host
        whole.append(each.slot)
        if not keeps:
            stream.free(whole.pop())
    stream.free(*whole)


def _one_by_one(stream: RequestStream, job: Job, sizes: Sizes, weights: Iterable[Weight]) -> None:
    for each in weights:
        whole = _whole(stream, job, sizes, each)
        if each.packed:
            each.dtype = "int8"
            _keep_constants(stream, job, sizes, each)
        if not job.recipe.offloads_params:
            _keep_shard(stream, sizes, each)
        stream.free(whole)


def _whole(stream: RequestStream, job: Job, sizes: Sizes, weight: Weight) -> int | None:
    """The whole parameter, of which the shard is a copy; none where shards are on the host or come first."""
    if job.recipe.offloads_params or job.stack.fsdp_loads == "shards":
        return None
    n_bytes = weight.count * ELEMENT_BYTES[sizes.stored(weight)]
    return stream.allocate(weight.unit, n_bytes, "other_temporaries", ("load", weight.name, "whole"))


def _tied_again(stream: RequestStream, job: Job, sizes: Sizes) -> int | None:
    """Under FSDP2 the state dict of a tied model has its table under the name of the head, too: a second
    shard of it, which goes when all are in their places.
    """
    is_of_transformers = job.recipe.sharding.dtensors and job.stack.model_code != "own"
    if not job.model.tied or not is_of_transformers or job.recipe.offloads_params:
        return None
    table = next(each for each in model_weights(job) if each.name == job.model.token_embedding.name)
    table.dtype = prepared_dtype(job, table)
    whole = _whole(stream, job, sizes, table)
    shard = stream.allocate(table.unit, sizes.shard_bytes(table), "weights", ("load", "lm_head", "shard"))
    stream.free(whole)
    return shard


def _keep_constants(stream: RequestStream, job: Job, sizes: Sizes, weight: Weight) -> None:
    """Scales of a packed matrix are divided with it.

    Source: torchao 0.17 dtypes/nf4tensor.py nf4_split, fsdp_pre_all_gather.
    Ignored: loops of one's own that divide matrices of bitsandbytes, whose scales stay whole.
    """
    if not job.recipe.offloads_params:
        for n_bytes in constants(job, weight):
            stream.allocate(
                Unit.ONE, n_bytes / sizes.n, "quantization_constants", ("load", weight.name, "scales")
            )


def _keep_shard(stream: RequestStream, sizes: Sizes, weight: Weight) -> int:
    term: TermName = "adapters" if weight.adapter else "weights"
    n_bytes = sizes.shard_bytes(weight) / sizes.in_a_byte(weight)
    return stream.allocate(weight.unit, n_bytes, term, ("load", weight.name, "shard"))


def around(
    stream: RequestStream, events: array[int], module: str
) -> tuple[array[int], array[int], array[int]]:
    """Events before, while and after ``module`` runs:
    from its first allocation to the next one of another module.

    All of them are after it where the module allocates nothing.
    """
    made = [index for index, event in enumerate(events) if event >= 0]
    own = [index for index in made if stream.place(events[index])[1] == module]
    if not own:
        return array("q"), array("q"), events
    end = next((index for index in made if index > own[-1]), len(events))
    return events[: own[0]], events[own[0] : end], events[end:]
