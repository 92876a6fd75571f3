"""The parameters of a model and of its adapters, in the order of ``model.parameters()``.

Source: transformers 5.23 models/*/modeling_*.py (``__init__`` of the modules);
peft 0.21 tuners/lora/layer.py update_layer.
Ignored: norms stand behind the matrices of their layer here; buffers (rotary frequencies,
at most 0.5 MiB for a layer).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from planner.anatomy.adapted_matrices import is_adapted, oft_block_size
from planner.anatomy.packing import Matrices, packed_bytes
from planner.anatomy.quantized_matrices import is_quantizable
from planner.anatomy.trained_parts import parts_of
from planner.domain.model import BlockSpec, EmbeddingSpec, LinearSpec, ModelSpec, NormSpec
from planner.domain.recipes.parallel import HEAD, NORM, TABLE
from planner.domain.stack import Stack
from planner.domain.vision import TowerSpec
from planner.intake.train_layers import TrainedParts
from planner.program.ops.tensors import ELEMENT_BYTES, Dtype, Unit

if TYPE_CHECKING:
    from planner.program.job import Job

Kind = Literal["table", "matrix", "bias", "norm"]
Shape = tuple[tuple[Unit, float], ...]
SEEING = ("tower ", "projector ")
"""How names of weights of a vision tower and its projector begin."""


@dataclass(slots=True)
class Weight:
    """One parameter: ``shape`` with the unit of each dimension, and where it lies once it is on the card.

    ``outside``: not in a layer.  ``packed``: stored in 8 or 4 bits.  ``adapter``: a LoRA matrix or a trained
    copy of a module.  ``unread``: it is to be trained, but nothing reads its output, so that it gets no
    gradient.
    ``slot`` is -1 until the parameter is on the card; ``dtype`` and ``slot`` change where a copy replaces it.
    It has ``count`` elements for each ``unit``.
    """

    name: str
    kind: Kind
    shape: Shape
    dtype: Dtype
    trained: bool
    outside: bool = False
    packed: bool = False
    adapter: bool = False
    unread: bool = False
    slot: int = -1
    unit: Unit = field(init=False)
    count: float = field(init=False)

    def __post_init__(self) -> None:
        # A loop: large models have a hundred thousand of these.
        self.unit, self.count = Unit.ONE, 1
        for unit, count in self.shape:
            self.count *= count
            if unit is Unit.RANK:
                self.unit = unit

    @property
    def unit_bytes(self) -> float:
        """Bytes for each of its unit, unpacked."""
        return self.count * ELEMENT_BYTES[self.dtype]

    @property
    def stacked(self) -> bool:
        """Whether it has those of all experts, and not one that is named alike."""
        return len(self.shape) > (2 if self.kind == "matrix" else 1)

    @property
    def matrices(self) -> Matrices:
        """A matrix, or those of all experts."""
        (_, rows), (_, columns) = self.shape[-2:]
        copies = self.count / (rows * columns)
        return Matrices(self.count, rows * copies, columns * copies, copies)

    @property
    def requires_gradient(self) -> bool:
        """What ``requires_grad`` says of it."""
        return self.trained or self.unread

    @property
    def decays(self) -> bool:
        """Whether the Trainer's optimizer has it in the group with weight decay, which steps first.

        Source: transformers 5.23 trainer.py get_decay_parameter_names.
        """
        return self.kind in ("table", "matrix")


@dataclass(frozen=True, slots=True)
class Parameters:
    """``count`` parameters that differ from ``weight`` in their names alone;
    ``element_bytes``: of each element as it is stored (0.5: packed 4-bit).
    """

    weight: Weight
    element_bytes: float
    count: int


@dataclass(frozen=True, slots=True)
class JobByKey:
    """A job by all that something depends on: jobs with equal keys are equal, as caches see them."""

    key: tuple[object, ...]
    job: Job = field(compare=False)


def parameters_of(job: Job) -> tuple[Parameters, ...]:
    """The parameters of a job, equal ones counted together; a model has many and few that differ.

    They do not depend on a rank: they are counted in it.
    """
    recipe = job.recipe.without_sizes
    chosen = (recipe.method, recipe.numerics, recipe.adapter, recipe.train_layers, recipe.frozen)
    key = (job.model, job.stack, chosen, job.recipe.batch.images is None, job.regime)
    return _parameters(JobByKey(key, job))


@lru_cache(maxsize=256)
def _parameters(described: JobByKey) -> tuple[Parameters, ...]:
    regime = described.job.regime
    job, times = _of_one_layer_each(described.job)
    base, adapters = model_weights(job), adapter_weights(job)
    known = {each.name for each in base} | ({"head"} if job.model.tied else set())
    packed = packed_bytes(job.recipe.numerics, 1)
    found: dict[tuple[object, ...], tuple[Weight, float]] = {}
    counts = Counter[tuple[object, ...]]()
    for each in (*base, *adapters):
        # Trained copies of modules have the names of these.
        copied = each.adapter and each.name in known
        width: float = regime.copied if copied else regime.outside if each.outside else regime.base
        if each.packed:
            width = packed
        elif each.kind == "norm":
            width = regime.norm_weight
        elif each.adapter and not copied:
            width = regime.adapter
        key = (width, each.kind, each.shape, each.trained, each.unread, each.packed, each.adapter, copied)
        found.setdefault(key, (each, width))
        counts[key] += times[int(each.name.split()[1])] if times and each.name.startswith("layer ") else 1
    return tuple(Parameters(*found[key], count) for key, count in counts.items())


def _of_one_layer_each(job: Job) -> tuple[Job, list[int]]:
    """The job with one layer of each kind, and how many there are; as it is where layers of a kind differ."""
    model = job.model
    if job.recipe.train_layers or model.stage is not None:
        return job, []
    shallow = replace(model, groups=tuple(replace(each, count=1) for each in model.groups))
    times = [each.count for each in model.groups]
    return replace(job, scenario=replace(job.scenario, model=shallow)), times


def model_weights(job: Job) -> list[Weight]:
    """Every parameter of the base model, as it is loaded."""
    model, parts = job.model, parts_of(job.model, job.recipe)
    seeing = [] if model.vision is None else [*_seeing(job, model.vision)]
    made: list[Weight] = [*_tables(model.token_embedding, *model.extra_embeddings)]
    for extra in model.extra_linears:
        made += _linear(job, extra, extra.name)
    n_first = int(model.embedding_norm)
    made += _norms(model.final_norms[:n_first], "embeddings")
    for each in made:
        each.outside = True
    for layer, block in _layers(model):
        for linear in block.linears:
            made += _linear(job, linear, f"{layer} {linear.name}")
        if block.extra_params:
            made.append(_weight(f"{layer} extra", "matrix", block.extra_params))
        made += _norms(block.norms, layer)
    norms, heads = [*_norms(model.final_norms[n_first:], "norm")], [*_head(job)]
    if model.stage is not None:
        made = made if model.stage.has(TABLE) else [each for each in made if not each.outside]
        norms, heads = norms if model.stage.has(NORM) else [], heads if model.stage.has(HEAD) else []
    last = [*norms, *heads]
    for each in last:
        each.outside = True
    made = [*seeing, *made, *last]
    halves = {
        linear.name for group in model.groups for linear in group.block.linears if not linear.mixes_tokens
    }
    for each in made:
        each.trained = _is_trained(model, parts, each, halves)
        each.unread = not each.trained and _is_asked_for(job, each)
        widens = (each.requires_gradient and job.stack.trainable_fp32) or _is_widened_end(job, each)
        each.dtype = "fp32" if widens else job.recipe.numerics.load_dtype
    return made


def _layers(model: ModelSpec) -> Iterator[tuple[str, BlockSpec]]:
    """Names and blocks of the layers of the language model."""
    blocks = (group.block for group in model.groups for _ in range(group.count))
    return ((f"layer {number}", block) for number, block in enumerate(blocks))


def _is_widened_end(job: Job, weight: Weight) -> bool:
    """Whether a full fine-tune keeps this table, head or norm in fp32.

    Source: axolotl 0.19.0 loaders/model.py _configure_embedding_dtypes.  Ignored: routers.
    """
    widens = job.stack.widens_ends and job.recipe.method == "full" and job.regime.engine == "native"
    return widens and (weight.outside or weight.kind == "norm")


def _seeing(job: Job, vision: TowerSpec) -> Iterator[Weight]:
    """The tower and its projector, which modelling code makes before the language model."""
    for layer, block in _seeing_blocks(vision):
        made = [
            weight for linear in block.linears for weight in _linear(job, linear, f"{layer} {linear.name}")
        ]
        made += [_weight(f"{layer} extra", "table", block.extra_params)] if block.extra_params else []
        yield from (*made, *_norms(block.norms, layer))
    yield from _norms(vision.behind, "tower")


def _seeing_blocks(vision: TowerSpec) -> Iterator[tuple[str, BlockSpec]]:
    """Names and blocks of entry, layers and projectors."""
    yield "tower entry", vision.entry
    layers = (group.block for group in vision.groups for _ in range(group.count))
    yield from ((f"tower layer {number}", block) for number, block in enumerate(layers))
    stacked = (group.block for group in vision.stacked for _ in range(group.count))
    yield from ((f"tower stacked {number}", block) for number, block in enumerate(stacked))
    projectors = (group.block for group in vision.projectors for _ in range(group.count))
    yield from ((f"projector {number}", block) for number, block in enumerate(projectors))


def _is_unread(model: ModelSpec, name: str) -> bool:
    """Whether a weight is of a tower's last layers, or behind them, whose output nothing reads."""
    vision, words = model.vision, name.split()
    if vision is None or not vision.n_unread or words[0] != "tower":
        return False
    return words[1] == "norm" or (words[1] == "layer" and int(words[2]) >= vision.n_layers - vision.n_unread)


def _is_asked_for(job: Job, weight: Weight) -> bool:
    """Whether a weight of a tower or its projector is to be trained, with images or without."""
    frozen = job.recipe.frozen
    if job.recipe.method != "full" or job.recipe.train_layers or not weight.name.startswith(SEEING):
        return False
    return ("vision_tower" if weight.name.startswith("tower ") else "projector") not in frozen


def _is_trained(model: ModelSpec, parts: TrainedParts, weight: Weight, halves: Collection[str]) -> bool:
    """Whether a weight of the base model is trained, by the part of the model that it belongs to.

    ``halves``: names of the matrices of feed-forward parts.
    """
    if weight.name.startswith(SEEING):
        return weight.name.split()[0] in parts.ends and not _is_unread(model, weight.name)
    if not weight.outside:
        _, number, name, *_ = weight.name.split()
        return int(number) in parts.layers and (int(number) not in parts.mlp_only or name in halves)
    end = "norm" if weight.kind == "norm" else "head" if weight.name.startswith("head") else "embed"
    return end in parts.ends


def adapter_weights(job: Job) -> list[Weight]:
    """LoRA matrices, ``A`` before ``B``, and trained copies of ``modules_to_save``,
    each at the place of its module.
    """
    model, adapter = job.model, job.recipe.adapter
    if adapter is None:
        return []
    saved = adapter.saved_names
    made = [*_tables(model.token_embedding)] if model.token_embedding.name in saved else []
    for linear, name in _named_linears(model):
        if linear.name in saved:
            made += _linear(job, linear, name)
        elif is_adapted(linear, adapter.targets):
            made += _lora(job, linear, name)
    for each in made:
        # Without images nothing of a tower gets a gradient.
        seeing = each.name.startswith(SEEING)
        each.trained = not seeing or (
            job.recipe.batch.images is not None and not _is_unread(model, each.name)
        )
        each.unread = not each.trained
        each.adapter = True
        each.packed = False
    return made


def _named_linears(model: ModelSpec) -> Iterator[tuple[LinearSpec, str]]:
    seeing = [] if model.vision is None else _seeing_blocks(model.vision)
    yield from ((linear, f"{layer} {linear.name}") for layer, block in seeing for linear in block.linears)
    yield from ((linear, linear.name) for linear in model.extra_linears)
    layers = _layers(model)
    yield from ((linear, f"{layer} {linear.name}") for layer, block in layers for linear in block.linears)
    if model.stage is None or model.stage.has(HEAD):
        yield model.head, "head"


def _weight(name: str, kind: Kind, *counts: float) -> Weight:
    return Weight(name, kind, tuple((Unit.ONE, count) for count in counts), "fp32", trained=False)


def _tables(*tables: EmbeddingSpec) -> Iterator[Weight]:
    for table in tables:
        yield _weight(table.name, "table", table.rows, table.width)


def n_tensors(stack: Stack, linear: LinearSpec) -> int:
    """How many tensors its copies are: one where all experts of a layer are one tensor."""
    return 1 if linear.kind == "parameter" and stack.fused_experts else linear.copies


def _linear(job: Job, linear: LinearSpec, name: str) -> Iterator[Weight]:
    count = n_tensors(job.stack, linear)
    packed = job.regime.quantized and is_quantizable(linear, job.stack.passes_over)
    # Experts of a layer are one tensor also where this GPU has one of them alone.
    is_stacked = count < linear.copies or (linear.group == "expert" and linear.kind == "parameter")
    sizes = [linear.copies] if is_stacked and job.stack.fused_experts else []
    for _ in range(count):
        weight = _weight(name, "matrix", *sizes, linear.out_features, linear.in_features)
        weight.packed = packed
        yield weight
        yield from _bias(linear, name, linear.copies // count)


def _bias(linear: LinearSpec, name: str, copies: int) -> Iterator[Weight]:
    if linear.bias:
        yield _weight(f"{name} bias", "bias", copies * linear.out_features)


def _norms(norms: tuple[NormSpec, ...], name: str) -> Iterator[Weight]:
    for norm in norms:
        for _ in range(norm.copies):
            for part in ("norm",) * int(norm.weight) + ("norm bias",) * int(norm.bias):
                yield _weight(f"{name} {part}", "norm", norm.width)


def _head(job: Job) -> Iterator[Weight]:
    head = job.model.head
    if not job.model.tied:
        weight = _weight("head", "matrix", head.out_features, head.in_features)
        weight.packed = job.regime.quantized and is_quantizable(head, job.stack.passes_over)
        yield weight
    yield from _bias(head, "head", 1)


def shared_matrices(job: Job) -> tuple[tuple[str, int], ...]:
    """VeRA's two matrices, by how wide they are beside the rank: as the widest input and output."""
    adapter = job.recipe.adapter
    if adapter is None or not adapter.vera:
        return ()
    adapted = [each for each, _ in _named_linears(job.model) if is_adapted(each, adapter.targets)]
    widest = max(each.in_features for each in adapted), max(each.out_features for each in adapted)
    return tuple(zip(("vera_A", "vera_B"), widest, strict=True))


def _lora(job: Job, linear: LinearSpec, name: str) -> Iterator[Weight]:
    """``A`` of (rank, in) and ``B`` of (out, rank);
    a tensor of all experts has a rank for each of them.  DoRA adds (out).

    OFT has one tensor instead, of (blocks, numbers of a triangle); VeRA has vectors of (out) and (rank).
    """
    adapter = job.recipe.adapter
    assert adapter is not None
    if adapter.oft_block_size:
        size = oft_block_size(linear.in_features, adapter.oft_block_size)
        shape = ((Unit.ONE, linear.in_features / size), (Unit.ONE, size * (size - 1) / 2))
        yield Weight(f"{name} oft_R", "matrix", shape, adapter.dtype, trained=True)
        return
    if adapter.vera:
        for part, counted in (("b", (Unit.ONE, linear.out_features)), ("d", (Unit.RANK, 1))):
            yield Weight(f"{name} vera_lambda_{part}", "matrix", (counted,), adapter.dtype, trained=True)
        return
    count = n_tensors(job.stack, linear)
    rank = (Unit.RANK, linear.rank_factor * linear.copies / count)
    ends = (Unit.ONE, linear.in_features), (Unit.ONE, linear.out_features)
    for _ in range(count):
        for part, shape in (("lora_A", (rank, ends[0])), ("lora_B", (ends[1], rank))):
            yield Weight(f"{name} {part}", "matrix", shape, adapter.dtype, trained=True)
        if adapter.dora:
            yield Weight(f"{name} lora_magnitude_vector", "matrix", (ends[1],), adapter.dtype, trained=True)
