"""How the weights come to the card, and adapters after them.

Source: transformers 5.23 core_model_loading.py and integrations/bitsandbytes.py (each tensor is moved to the
card, packed where it is to be, and let go); peft 0.21 utils/other.py prepare_model_for_kbit_training;
bitsandbytes 0.50 nn/modules.py.
Ignored: code books and other tensors of less than 2 KiB;
that a checkpoint's own order differs from that of the model where nothing sorts it; what turning fp8 weights
to 16 bits holds (integrations/finegrained_fp8.py Fp8Dequantize): 9 bytes for each element of a matrix.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from math import inf

from planner.anatomy.adapted_matrices import is_adapted
from planner.anatomy.packing import constants_bytes, packed_bytes
from planner.domain.recipes.fp8 import te_scaling
from planner.domain.recipes.fp8_scaling import workspace_bytes
from planner.domain.recipes.recipe import BITSANDBYTES, STAYS_16_BIT, Recipe
from planner.domain.stack import Stack
from planner.domain.term import TermName
from planner.domain.uncertainty.coefficients import Coefficients
from planner.program.job import Job, reward_job, second_job
from planner.program.ops.tensors import ELEMENT_BYTES, PRODUCTS, Dtype, Unit
from planner.program.parameters import SEEING, Weight, adapter_weights, model_weights, shared_matrices
from planner.program.position_tables import table_row_bytes
from planner.program.request_stream import RequestStream
from planner.program.weights.fake_quantized import SCALE_BYTES, is_rounded
from planner.units import GIB

_LAYERS = "layers"
_SCALED = 64
"""Elements of one scale.  Source: bitsandbytes 0.50 functional.quantize_4bit."""
_LEFT_FREE_BYTES = 1.2 * GIB
"""What the loader's first piece leaves of the card.  Source: transformers 4.52.4, 4.55.4 and 4.57.6
modeling_utils.py caching_allocator_warmup."""


def load(stream: RequestStream, job: Job) -> list[Weight]:
    """Weights, one tensor after the other, then adapters; gives every parameter with its slot."""
    weights = load_whole(stream, job)
    _take_tables(stream, job)
    stream.enter("forward")
    _take_workspaces(stream, job)
    return weights


def load_whole(stream: RequestStream, job: Job) -> list[Weight]:
    """The same without what the first products take.  What is cast on the host comes as it is then."""
    stream.enter("load")
    weights = model_weights(job)
    if casts_on_host(job):
        _cast_on_host(job, weights)
        arrive(stream, job, weights)
    else:
        whole = [each for each in weights if not each.packed]
        prepared = {id(each): prepared_dtype(job, each) for each in whole}
        for each in whole:
            # What training widens arrives narrow, too.
            each.dtype = job.recipe.numerics.load_dtype
        _reserve(stream, job, weights)
        arrive(stream, job, weights)
        if _passes_fp32(job):
            ends: dict[int, Dtype] = {
                id(each): "fp32" for each in whole if each.outside or each.kind == "norm"
            }
            replace(stream, whole, {**prepared, **ends})
        replace(stream, whole, prepared)
    if job.recipe.adapter is not None:
        stream.enter("adapters")
    weights = _in_module_order([*weights, *add_adapters(stream, job, weights)])
    if _has_frozen_adapters(job):
        add_adapters(stream, job, weights)
    for other in (second_job(job), reward_job(job)):
        if other is not None:
            _load_beside(stream, other)
    if job.stack.runs_trainer and not casts_on_host(job):
        stream.empty_cache()
    # When the Trainer makes the engine.
    replace(stream, weights, engine_dtypes(job, weights))
    if te_scaling(job.recipe.numerics.fp8) and job.stack.model_code != "megatron-core":
        _convert(stream, weights)
    return weights


def _has_frozen_adapters(job: Job) -> bool:
    """Whether a second adapter is as large as the trained one: that of the reward model, or the reference.

    Source: peft 0.12 peft_model.py load_adapter, in fp32; trl 1.16.0 trainer/dpo_trainer.py, "ref".
    """
    scores = job.recipe.rollout is not None and job.recipe.rollout.scores_itself
    return scores or (job.recipe.adapter is not None and job.stack.copies_adapters)


def _convert(stream: RequestStream, weights: Iterable[Weight]) -> None:
    """Accelerate makes a matrix of Transformer Engine of each, and the optimizer lets go of the old ones when
    all are made.

    Source: accelerate 1.15 accelerator.py _prepare_te, utils/transformer_engine.py convert_model.
    """
    before = []
    for each in weights:
        if each.kind in ("matrix", "bias"):
            before.append(each.slot)
            place = "load", each.name, "empty"
            each.slot = stream.allocate(each.unit, each.unit_bytes, "weights", place)
    stream.free(*before)


def _in_module_order(weights: Sequence[Weight]) -> list[Weight]:
    """As ``Module.parameters`` gives them: an adapter comes with the matrix that it is beside.

    Both parts of a layer of GPT-2 have a matrix of one name; their adapters come in the same order.
    """
    places = defaultdict[str, list[int]](list)
    for number, each in enumerate(weights):
        if not each.adapter:
            places[each.name].append(number)
    seen = Counter[str]()

    def place(of: tuple[int, Weight]) -> int:
        number, each = of
        beside = places.get(each.name.rpartition(" lora_")[0]) if each.adapter else None
        if beside is None:
            return number
        seen[each.name] += 1
        return beside[min(seen[each.name], len(beside)) - 1]

    return [each for _, each in sorted(enumerate(weights), key=place)]


def _load_beside(stream: RequestStream, job: Job) -> None:
    """A model that a policy is compared with or scored by, whole; DeepSpeed runs it by an engine of stage 0,
    which casts it.

    Source: trl 0.15.2 and 1.16.0 models/utils.py prepare_deepspeed.
    """
    stream.enter("load")
    weights = model_weights(job)
    if casts_on_host(job):
        _cast_on_host(job, weights)
    arrive(stream, job, weights)
    replace(stream, weights, engine_dtypes(job, weights))


def _passes_fp32(job: Job) -> bool:
    """Whether the loader widens token table, head and norms on the card before they get their dtype.

    Models of bitsandbytes are there by then; others where there are several GPUs, else still in host RAM.
    Source: switch ``loads_through_fp32``; axolotl 0.19.0 utils/config/__init__.py choose_device,
    loaders/model.py _configure_embedding_dtypes; accelerate 1.15.0 utils/launch.py sets ACCELERATE_USE_CPU.
    """
    recipe = job.recipe
    if not job.stack.loads_through_fp32 or recipe.sharding.gathers_weights or recipe.uses_fsdp:
        return False
    there = recipe.sharding.engine == "native" and job.hardware.world_size > 1
    return there or recipe.numerics.quantization in BITSANDBYTES


def casts_on_host(job: Job) -> bool:
    """Whether DeepSpeed's engine gets the model in host RAM, casts it there and moves it to the card then.

    Source: deepspeed 0.19.8 runtime/engine.py _configure_distributed_model.
    """
    is_given = job.regime.engine == "deepspeed" and job.recipe.numerics.quantization == "none"
    return is_given and not loader_places(job)


def loader_places(job: Job) -> bool:
    """Whether the loader brings the model to the card, tensor by tensor (``device_map``)."""
    recipe, places, stage = job.recipe, job.stack.loader_places, job.model.stage
    if recipe.numerics.quantization in BITSANDBYTES or (stage is not None and stage.in_turn):
        return True
    if places == "alone":
        return recipe.sharding.engine == "native" and job.hardware.world_size == 1
    return places == "undivided" and not (recipe.sharding.is_zero3 or recipe.uses_fsdp)


def _cast_on_host(job: Job, weights: Iterable[Weight]) -> None:
    dtypes = engine_dtypes(job, weights)
    for each in weights:
        each.dtype = dtypes.get(id(each), prepared_dtype(job, each))


def _reserve(stream: RequestStream, job: Job, weights: Iterable[Weight]) -> None:
    """One piece for all that the loader brings, let go at once, so that its tensors lie in one segment.

    Where it is half of k-bit models, no more than what is free on the card counts, before it is halved.
    Source: transformers 4.57.6 and 5.23 modeling_utils.py caching_allocator_warmup.
    Ignored: that 4.51 leaves 5 % of the card, not 1.2 GiB; that up to 4.52 a tied table counts twice; that up
    to 5.16 a matrix that tensor parallelism could divide counts by one process's part; models that are packed
    by others.
    """
    reserves, numerics = job.stack.loader_reserves, job.recipe.numerics
    if reserves == "nothing" or not loader_places(job):
        return
    if reserves_free(job.recipe, job.stack):
        width = ELEMENT_BYTES[numerics.load_dtype]
        n_bytes = min(sum(each.count for each in weights) * width, _most_reserved(job)) / 2
    else:
        n_bytes = sum(
            packed_bytes(numerics, each.count) if each.packed else each.unit_bytes for each in weights
        )
    place = "load", "", "warmup"
    stream.free(stream.allocate(Unit.ONE, n_bytes, "weights", place))


def reserves_free(recipe: Recipe, stack: Stack) -> bool:
    """Whether what is free on the card limits the loader's first piece."""
    return stack.loader_reserves == "half" and recipe.numerics.quantization in BITSANDBYTES


def _most_reserved(job: Job) -> float:
    """What is free before anything is loaded, less 1.2 GiB."""
    visible = job.hardware.gpu.visible_memory_bytes
    return inf if visible is None else visible - Coefficients().context_bytes - _LEFT_FREE_BYTES


def arrive(stream: RequestStream, job: Job, weights: Iterable[Weight]) -> None:
    """Tensor by tensor: by their names where the loader sorts them, else those first that preparation
    replaces later.
    """
    if job.stack.loads_sorted and loader_places(job):
        # GPT-2's ``attn`` and those named after it stand before ``mlp``, ``self_attn`` behind it.
        behind = job.model.token_embedding.name != "wte"
        inside = {linear.name for linear, _ in job.model.linears() if linear.mixes_tokens == behind}
        ordered = sorted(weights, key=lambda each: _place_by_name(each, inside))
    else:
        ordered = sorted(weights, key=lambda each: prepared_dtype(job, each) == each.dtype)
    for each in ordered:
        if each.packed:
            _pack(stream, job, each)
        else:
            each.slot = stream.allocate(each.unit, each.unit_bytes, "weights", ("load", each.name, "weight"))


def _place_by_name(weight: Weight, inside: Collection[str]) -> tuple[int, int, bool, str]:
    """Where the name of a weight stands among those of the checkpoint.

    ``lm_head``, ``model.embed_tokens``, layers by their numbers, ``model.norm``, what sees; tables such as
    ``wte`` stand behind the layers.  In a layer come norms, ``mlp``, ``self_attn``, and in each of them
    matrices by the alphabet;
    ``inside``: names of matrices of the part that comes last, attention or what stands in its place.
    Source: transformers 5.23 core_model_loading.py dot_natural_key.
    Ignored: modules of other names; that both parts of GPT-2 have a ``c_proj``; norms between matrices, and
    experts that are put together, which come by the first of their tensors.
    """
    if weight.name.startswith(SEEING):
        return 4, 0, False, ""
    if weight.outside:
        ahead = weight.kind == "table" and weight.name < _LAYERS
        return (0 if weight.name.startswith("head") else 1 if ahead else 3), 0, False, ""
    _, number, name, *_ = weight.name.split()
    return 2, int(number), name in inside, "" if weight.kind == "norm" else name


def _pack(stream: RequestStream, job: Job, weight: Weight) -> None:
    """A matrix arrives whole, is packed, and goes; of a checkpoint that is packed already it arrives so.

    int8 is made of an fp16 copy, whatever the dtype: it goes through the host.  4-bit ones are made with fp32
    scales, which pass where they are quantised, too.
    Source: transformers 5.23 integrations/bitsandbytes.py Bnb4bitQuantize, Bnb8bitQuantize;
    bitsandbytes 0.50 nn/modules.py Int8Params._quantize, functional.py quantize_4bit.
    """
    numerics = job.recipe.numerics
    passing, kept = [], list(constants(job, weight))

    def passes(n_bytes: float, name: str) -> None:
        passing.append(stream.allocate(Unit.ONE, n_bytes, "dequantization", ("load", weight.name, name)))

    def stays(n_bytes: float) -> None:
        stream.allocate(Unit.ONE, n_bytes, "quantization_constants", ("load", weight.name, "scales"))

    four_bit = numerics.quantization in ("nf4", "fp4") and not numerics.arrives_packed
    scale_bytes = weight.count / _SCALED * ELEMENT_BYTES["fp32"]
    if not numerics.arrives_packed:
        passes(weight.count * ELEMENT_BYTES[numerics.load_dtype], "whole")
    if numerics.quantization == "int8":
        passes(weight.count * ELEMENT_BYTES["fp16"], "whole")
    if four_bit and numerics.double_quant:
        passes(scale_bytes, "fp32 scales")
    elif four_bit:
        stays(kept.pop())
    weight.dtype = "int8"
    packed = packed_bytes(numerics, weight.count)
    weight.slot = stream.allocate(Unit.ONE, packed, "weights", ("load", weight.name, "packed"))
    if four_bit and numerics.double_quant and job.stack.linear4bit_copies_scales:
        passes(scale_bytes, "less their mean")
    for n_bytes in kept:
        stays(n_bytes)
    stream.free(*reversed(passing))


def constants(job: Job, weight: Weight) -> Iterator[float]:
    """Bytes of each tensor that unpacking one packed matrix reads."""
    return constants_bytes(job.recipe.numerics, weight.matrices)


def prepared_dtype(job: Job, weight: Weight) -> Dtype:
    """The dtype that preparation for training leaves a weight in.

    PEFT widens every 16-bit tensor that is not packed, but nothing over some bases;
    other stacks widen norms, or nothing.
    """
    numerics, stack = job.recipe.numerics, job.stack
    if weight.packed or job.recipe.method == "full" or numerics.quantization in STAYS_16_BIT:
        return weight.dtype
    if numerics.quantization == "none":
        return "fp32" if stack.prepares_unquantized else weight.dtype
    upcast = stack.kbit_upcast_over(job.recipe)
    widens = upcast == "all" or (upcast == "norms" and weight.kind == "norm")
    inside = upcast == "layers" and weight.kind != "norm" and not weight.outside
    return "fp32" if widens or inside else weight.dtype


def replace(stream: RequestStream, weights: Iterable[Weight], dtypes: dict[int, Dtype]) -> None:
    """``parameter.data = parameter.data.to(dtype)``, one after the other;
    ``dtypes`` by ``id`` of each weight.
    """
    for each in weights:
        dtype = dtypes.get(id(each), each.dtype)
        if dtype != each.dtype:
            before, each.dtype = each.slot, dtype
            term: TermName = "adapters" if each.adapter else "weights"
            each.slot = stream.allocate(each.unit, each.unit_bytes, term, ("load", each.name, "to"))
            stream.free(before)


def engine_dtypes(job: Job, weights: Iterable[Weight]) -> dict[int, Dtype]:
    """DeepSpeed's engine casts the module: what is not packed becomes 16-bit,
    where the stack's engine does that.

    Under stage 3 adapters stay as PEFT made them, unless the base is packed.
    Source: deepspeed 0.19.8 runtime/engine.py _configure_distributed_model, _cast_module_mixed_precision.
    """
    numerics, regime = job.recipe.numerics, job.regime
    if regime.engine != "deepspeed" or not numerics.mixed:
        return {}
    halves = numerics.quantization == "none" or job.stack.engine_halves_kbit
    halves_adapters = regime.adapter == ELEMENT_BYTES[numerics.compute_dtype]
    return {
        id(each): numerics.compute_dtype
        for each in weights
        if (halves_adapters if each.adapter else halves and not each.packed)
    }


def add_adapters(stream: RequestStream, job: Job, weights: Iterable[Weight]) -> list[Weight]:
    """LoRA matrices in the recipe's dtype, and copies of saved modules in the dtype of their originals,
    until a stack widens them.

    OFT's rotations have the places above the diagonal in two buffers; VeRA's layers share two matrices, as
    wide as the widest of them.
    Source: peft 0.21 tuners/lora/layer.py update_layer, tuners/oft/layer.py OFTRotationModule, utils/other.py
    ModulesToSaveWrapper.
    """
    made = adapter_weights(job)
    originals = {each.name: each.dtype for each in weights if not each.packed}
    table = job.model.token_embedding.name
    if job.model.tied and table in originals:
        originals["head"] = originals[table]
    cast = engine_dtypes(job, made) if casts_on_host(job) else {}
    for name, width in shared_matrices(job):
        stream.allocate(Unit.RANK, width * job.regime.adapter, "adapters", ("adapters", name, "weight"))
    for each in made:
        each.dtype = cast.get(id(each), originals.get(each.name, each.dtype))
        each.slot = stream.allocate(each.unit, each.unit_bytes, "adapters", ("adapters", each.name, "weight"))
        if each.name.endswith("oft_R"):
            for part in ("rows", "cols"):
                index_bytes = each.shape[1][1] * ELEMENT_BYTES["int64"]
                stream.allocate(Unit.ONE, index_bytes, "adapters", ("adapters", each.name, part))
    if job.regime.copied > job.regime.outside:
        replace(stream, made, {id(each): "fp32" for each in made})
    return made


def take_workspaces(stream: RequestStream, job: Job) -> None:
    """Tables of positions, which came with the weights, and what the first products take and keep."""
    _take_tables(stream, job)
    _take_workspaces(stream, job)


def _take_tables(stream: RequestStream, job: Job) -> None:
    if row_bytes := table_row_bytes(job):
        stream.allocate(Unit.TABLE_ROWS, row_bytes, "other_temporaries", ("load", "rotary_emb", "tables"))


def _take_workspaces(stream: RequestStream, job: Job) -> None:
    """cuBLAS's workspace, and a buffer for expanded weights where the stack has one.

    Source: torch 2.13 aten/src/ATen/cuda/CublasHandlePool.cpp;
    unsloth 2026.10.9 kernels/utils.py fast_dequantize.
    """
    if mask_bytes := job.model.mask_bytes:
        stream.allocate(Unit.ONE, mask_bytes, "other_temporaries", ("load", "attn", "bias"))
    _take_scales(stream, job)
    if te_scaling(job.recipe.numerics.fp8):
        size = workspace_bytes(job.hardware.gpu)
        stream.allocate(Unit.ONE, size, "other_temporaries", ("products", "transformer_engine", "workspace"))
    stream.workspace = stream.allocate(
        Unit.WORKSPACE, 1, "other_temporaries", ("products", "cublas", "workspace")
    )
    if job.stack.keeps_expanded_weight and job.recipe.numerics.quantization in ("nf4", "fp4"):
        packed = (each.weight.matrices for each in job.parameters if each.weight.packed)
        elements = max((each.elements / each.count for each in packed), default=0)
        for n_bytes in (elements * job.regime.compute, elements / _SCALED * 4):
            stream.allocate(Unit.ONE, n_bytes, "dequantization", ("products", "fast_dequantize", "buffer"))


def _take_scales(stream: RequestStream, job: Job) -> None:
    """What modules that round as if quantised keep from their last call on: scales and zeros in fp32, of each
    group of weights and of each token; those of MXFP4 keep nothing.
    """
    numerics, model = job.recipe.numerics, job.model
    adapter = job.recipe.adapter
    linears = [*model.linears(), *([] if model.tied else [(model.head, 1)])]
    for spec, count in linears:
        adapted = adapter is not None and is_adapted(spec, adapter.targets)
        if numerics.qat != "int8-int4" or not is_rounded(job.recipe, spec, adapted=adapted):
            continue
        place = "forward", spec.name, "scales"
        sizes = [spec.weight_count / numerics.qat_group * SCALE_BYTES / 2] * (2 * count)
        if job.stack.qat_weights == "intx":
            stream.allocate_all(sizes, "quantization_constants", place)
        stream.allocate(Unit.TOKENS, SCALE_BYTES * count, "quantization_constants", place)


def settle_workspace(stream: RequestStream) -> None:
    """cuBLAS's workspace comes with the first product of PyTorch, behind what the model made before it, and
    once more with the first of the backward pass: autograd's thread has a handle of its own.

    A block of 8 or 32 MiB between other blocks decides which of them can be joined when they are free.
    Products of bitsandbytes' own library take none.
    Source: torch 2.13 aten/src/ATen/cuda/CublasHandlePool.cpp getCurrentCUDABlasHandle (``myPoolWindow``);
    both were seen in histories of an H100.
    """
    if stream.workspace is not None:
        if stream.engine_begins is not None:
            stream.take_again(stream.workspace, PRODUCTS, stream.engine_begins)
        stream.put_off(stream.workspace, PRODUCTS)
