"""FSDP1: the parameters of a group are one flat tensor, of which layers see views;
its gradient is one flat tensor too.

Source: torch 2.13 distributed/fsdp/_runtime_utils.py and _flat_param.py, whose functions the methods name;
the backward of ``torch.split`` (tools/autograd/derivatives.yaml, ``split_with_sizes_backward``), which joins
the gradients of all views.
Beside adapters each matrix of one is a unit of its own, inside of that of its layer (peft 0.21 utils/other.py
fsdp_auto_wrap_policy: modules without others inside whose weight is trained).
Ignored: adapters of the head are gathered with the root; that a card which is faster than its host uses
blocks again sooner.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from planner.allocator.compiled import MOST_LAG
from planner.allocator.settings import SMALL_REQUEST_BYTES
from planner.anatomy.packing import packed_bytes
from planner.domain.term import TermName
from planner.program.engines.ddp import broadcast
from planner.program.engines.fsdp.fsdp import CAST_STREAM, GATHER_STREAM, REDUCE_STREAM, Fsdp
from planner.program.engines.fsdp.fsdp_units import INNER, PASSES
from planner.program.engines.groups import ROOT, Group, begin_training, comes_whole, part_of
from planner.program.job import Job
from planner.program.load import arrive, load_whole, prepared_dtype
from planner.program.ops.tensors import ELEMENT_BYTES, Mark, PartStage, Unit
from planner.program.parameters import Weight, adapter_weights, model_weights
from planner.program.request_stream import Instance, RequestStream, labelled
from planner.program.runtime import Pass

# The host runs ahead of the card.  ``_FreeEventQueue`` lets two flat parameters be given back that compute
# still uses; before the next gather it waits for the older one.  Source: torch 2.13 distributed/fsdp
# _limiter_utils.py (_max_num_inflight_all_gathers), _runtime_utils.py _unshard, _reshard.
_GATHER_LAG = 1
# Then the compute of the older one is over, so two gradients are not reduced yet: its own and the next one's.
# Source: _runtime_utils.py _post_backward_hook (``_no_dispatch_record_stream``).
_GRADIENT_LAG = 2
# A cast shard is made before that wait, when the last two may still be sent.
# Source: _runtime_utils.py _unshard, _flat_param.py _free_low_precision_sharded_param.
_CAST_LAG = 2
# Ends of paths to the matrices of an adapter.
_FACTORS = (("lora_A",), ("lora_B",))


class Fsdp1(Fsdp):
    """One process."""

    def __init__(self, stream: RequestStream, job: Job) -> None:
        super().__init__(stream, job)
        self.adds_gradients = False
        self.joins_gradients = self.reduces_last_only
        self._initialised = False
        # Shards that were widened, by the unit that still sees them.
        self._narrow: dict[str, list[int]] = {}
        # Units of adapters; those that were sent for before their turn; those whose backward is to come.
        self._adapters: set[str] = set()
        self._sent: set[str] = set()
        self._needed: set[str] = set()
        # A frozen layer that ends when the one before begins.
        self._ending: str | None = None

    def load_weights(self) -> list[Weight]:
        """The model comes unit by unit where it is not on the card yet, the root last; then Accelerate widens
        the shards that are trained, from the root on.

        An adapter is a unit of its own, before that of its layer.
        Source: accelerate 1.15 accelerator.py prepare_model (``upcasting``).
        Ignored: k-bit matrices that are not divided and wait in host RAM.
        """
        stream, job = self.stream, self.job
        on_card = comes_whole(job)
        self._adapters = self._run_adapters() if job.stack.fsdp1_wraps_adapters else set()
        if job.recipe.numerics.quantization != "none" and not on_card and not job.recipe.divides_base:
            return super().load_weights()
        if on_card:
            weights = load_whole(stream, job)
        else:
            stream.enter("load")
            weights = [*model_weights(job), *adapter_weights(job)]
            self._pack_on_card(each for each in weights if each.packed)
            for each in weights:
                each.dtype = prepared_dtype(job, each)
        made = [
            (name, group, self._divide(group, on_card=on_card))
            for name, group in self._flat_ones(filter(self.sizes.divides, weights))
        ]
        for name, group, shard in [*made[-1:], *made[:-1]]:
            self._widen(name, group, shard)
        begin_training(stream, job)
        return weights

    def _run_adapters(self) -> set[str]:
        """Units of adapters: matrices that are called as modules."""
        called: dict[int, set[str]] = {}
        found: set[str] = set()
        for part, template in labelled((each.name, each.template, each.count) for each in self.parts):
            if id(template) not in called:
                marks = (mark for _, mark in template.marks["forward"] if mark.moment == "before_forward")
                paths = {template.modules[mark.number] for mark in marks}
                called[id(template)] = {" ".join(path[-2:]) for path in paths if path[-1:] in _FACTORS}
            found |= {f"{part} {name}" for name in called[id(template)]}
        return found

    def _flat_ones(self, weights: Iterable[Weight]) -> list[tuple[str, list[Weight]]]:
        """The unit and the parameters of each flat one: adapters before their layer, the root last."""
        units: dict[str, dict[str, list[Weight]]] = {}
        for each in weights:
            own = each.name if each.adapter and self.job.stack.fsdp1_wraps_adapters else ""
            units.setdefault(self.units.of(each) or ROOT, {"": []}).setdefault(own, []).append(each)
        units[ROOT] = units.pop(ROOT, {"": []})
        flat = (group for (rest, *own) in map(dict.values, units.values()) for group in (*own, rest))
        return [(self._unit_of(group[0]), group) for group in flat if group]

    def _unit_of(self, weight: Weight) -> str:
        own = f"{part_of(weight)} {' '.join(weight.name.split()[-2:])}" if weight.adapter else ""
        return own if own in self._adapters else self.units.of(weight) or ROOT

    def _pack_on_card(self, weights: Iterable[Weight]) -> None:
        """Matrices are packed on the card and go to host RAM; what unpacking reads stays, and is not divided.

        Source: transformers 4.46.3 modeling_utils.py _load_state_dict_into_meta_model
        (``is_fsdp_enabled``); AnswerDotAI/fsdp_qlora train.py load_and_quantize; bitsandbytes 0.43.0
        nn/modules.py Params4bit (``quant_state``).
        """
        for each in weights:
            arrive(self.stream, self.job, [each])
            self.free(each.slot)
        if self.job.stack.runs_trainer:
            self.stream.empty_cache()

    def _whole_bytes(self, weight: Weight) -> float:
        if weight.packed:
            return packed_bytes(self.job.recipe.numerics, weight.count)
        return weight.unit_bytes

    def _divide(self, weights: list[Weight], *, on_card: bool) -> int:
        """The shard of one unit: its parameters are made equal on all ranks, and joined in one flat tensor.

        Source: ``_init_param_handle_from_module``, ``FlatParamHandle.shard``.
        Ignored: units that ``sync_module_states: false`` leaves as they are.
        """
        stream, unit, name = self.stream, weights[0].unit, weights[0].name
        place = "load", name, "flat parameter"
        sizes = [stream.unit_bytes[each.slot] if on_card else self._whole_bytes(each) for each in weights]
        if on_card:
            whole = [each.slot for each in weights]
        else:
            whole = [
                stream.allocate(unit, n_bytes, "other_temporaries", ("load", each.name, "whole"))
                for each, n_bytes in zip(weights, sizes, strict=True)
            ]
        broadcast(stream, "fsdp", ((each.dtype, size) for each, size in zip(weights, sizes, strict=True)))
        flat = stream.allocate(unit, sum(sizes), "other_temporaries", place)
        term: TermName = "adapters" if weights[0].adapter else "weights"
        shard = stream.allocate(unit, sum(sizes) / self.sizes.n, term, ("load", name, "shard"))
        self.free(flat, *whole)
        if self.offloads:
            self.free(shard)
        return shard

    def _widen(self, name: str, weights: list[Weight], shard: int) -> None:
        """A wider shard; the one before it goes when views of the new one are made (``_use_sharded_views``):
        behind the first forward, or behind the first backward where parameters stay whole until then.
        """
        stream = self.stream
        trained = next((each for each in weights if each.requires_gradient), None)
        if trained is None or self.offloads or self.sizes.stored(trained) == trained.dtype:
            return
        wider = ELEMENT_BYTES[self.sizes.stored(trained)] / ELEMENT_BYTES[trained.dtype]
        n_bytes, term = stream.unit_bytes[shard] * wider, stream.term(shard)
        stream.allocate(trained.unit, n_bytes, term, ("load", trained.name, "upcast"))
        self._narrow.setdefault(name, []).append(shard)

    def _after_forward(self, name: str, *, again: bool = False) -> None:
        """``_post_forward``: a reentrant checkpoint runs what is inside of it without gradients at first."""
        self._sent.discard(name)
        recipe, is_inside = self.job.recipe, name in self._adapters or name.endswith(INNER)
        if again or not (is_inside and recipe.gradient_checkpointing and recipe.checkpoint_reentrant):
            self._needed.add(name)
        if self.job.recipe.sharding.divides_weights:
            self.free(*self._narrow.pop(name, ()))
        super()._after_forward(name, again=again)

    def make_groups(self, weights: list[Weight]) -> dict[str, Group]:
        """Each unit, and the root with all that lies around them, which stays whole:
        ``_post_forward_reshard``.
        """
        groups = {ROOT: Group([], stays=True)}
        for each in weights:
            groups.setdefault(self._unit_of(each), Group([])).weights.append(each)
        return groups

    def is_updated(self, weight: Weight) -> bool:
        """In the flat tensor of the root what is not read has a gradient of zeros, and states."""
        return weight.trained or (weight.unread and not weight.adapter and not self.units.of(weight))

    def local_shards(self) -> list[Weight]:
        """This GPU's part of each flat parameter, as the optimizer sees it: the first of its parameters
        whole, one in part, and none of the others; all of them flat.  Or the optimizer has the flat one
        itself (switch ``fsdp1_flat``).

        Source: torch 2.13 distributed/fsdp/_flat_param.py _use_sharded_views (``use_orig_params``), of the
        first of the processes.
        """
        made, flat = [], self.job.stack.fsdp1_flat
        for group in self.groups.values():
            left = sum(each.count for each in group.weights if not each.adapter) / self.sizes.n
            for each in group.weights:
                shard = self.sizes.shard(each)
                if flat and not each.adapter:
                    shard, left = replace(shard, shape=((Unit.ONE, left),)), 0
                elif not each.adapter:
                    shard = replace(shard, shape=((Unit.ONE, min(each.count, left)),))
                    left -= shard.count
                if shard.count and self.is_updated(each):
                    made.append(shard)
        return made

    def unshard(self, group: Group) -> None:
        """``_unshard``: shards that are wider are cast in a stream of their own;
        all parts arrive in the flat tensor.  Those on the host are sent for and cast once more where the flat
        tensor is whole (``pre_unshard``).  Around adapters, what the last layer sent has arrived.
        """
        if not self._initialised:
            self._initialise()
        if group.whole and not self.offloads:
            return
        given, around = [], bool(self._adapters) and not group.weights[0].adapter
        if group.narrows:
            apart = self.job.stack.fsdp1_wraps_adapters
            cast_bytes = group.cast_bytes if apart else group.whole_bytes
            given.append(self._cast(cast_bytes / self.sizes.n, "_mp_shard"))
        if self.offloads:
            given.append(self._cast(group.shard_bytes, "shard from the host"))
        if len(given) > 1:
            self.free(given.pop())
        if not group.whole:
            group.whole = [
                self.take(group.whole_bytes, "gathered_parameters", "_full_param_padded", GATHER_STREAM)
            ]
        for slot in given:
            self.stream.free_late(slot, 0 if around else _CAST_LAG)

    def wait(self, group: Group, *, forward: bool) -> None:
        """Layers see views of what was received."""

    def _run(self, part: Instance, stage: PartStage) -> None:
        """A layer, with the hooks of the units inside of it."""
        if not self._adapters:
            super()._run(part, stage)
            return
        template = part.template
        for events, mark in part.between_marks(stage, (*PASSES, "gradient")):
            self.stream.events += events
            if mark is None:
                continue
            is_gradient = mark.moment == "gradient"
            path = template.modules[template.parameters[mark.number].module if is_gradient else mark.number]
            name = f"{part.name} {' '.join(path[-2:])}"
            if name in self.groups and path[-1:] in _FACTORS:
                self._at_adapter(name, part, mark, recomputes=stage == "backward")
            elif path == self.units.path and self.units.inside and not is_gradient:
                self._at(part, mark.moment, recomputes=stage == "backward")

    def _at_adapter(self, name: str, part: Instance, mark: Mark, *, recomputes: bool) -> None:
        """A matrix of an adapter is called, or its gradient is there."""
        if mark.moment == "before_forward":
            self._before_forward(name)
        elif mark.moment == "after_forward":
            self._after_forward(name, again=recomputes)
        elif mark.moment == "before_backward":
            self._before_backward(name)
        elif mark.moment == "gradient" and mark.slot is not None:
            slot = part.slot(mark.slot)
            self.groups[name].gradients += [
                each for each in self.sizes.gradients_of(part) if each.slot == slot
            ]
            self.collected.add(slot)
            self._after_backward(name)

    def _before_forward(self, name: str) -> None:
        if name not in self._sent:
            super()._before_forward(name)

    def _before_backward(self, name: str) -> None:
        """``_pre_backward_hook``: gathered if nobody has done so; then ``_prefetch_handle``."""
        if name in self.groups:
            if name in self._needed - self._sent:
                self.unshard(self.groups[name])
            self._needed.discard(name)
            self.send_for_next(name)
        if self._ending is not None:
            self._end(self._ending)
            self._ending = None

    def send_for_next(self, name: str) -> None:
        """``_prefetch_handle``: by then the host has waited in the adapters of the layer behind."""
        index = self.order.index(name) if self.job.stack.fsdp1_prefetches else 0
        before = self.order[index - 1]
        if index > 0 and before in self._needed - self._sent:
            if self._adapters and before not in self._adapters:
                self.stream.wait()
            self.unshard(self.groups[before])
            self._sent.add(before)

    def _after_backward(self, name: str) -> None:
        """The hook of a frozen unit is on the gradient of its input, as the one with which the layer before
        begins, which comes first but for reentrant checkpoints (``register_multi_grad_hook``).
        """
        group, recipe = self.groups.get(name), self.job.recipe
        reentrant = recipe.gradient_checkpointing and recipe.checkpoint_reentrant
        if reentrant or group is None or group.gradients or name in self._adapters:
            self._end(name)
        else:
            self._ending = name

    def _end(self, name: str) -> None:
        """``_post_backward_hook``, or ``_post_backward_reshard_only_hook`` where nothing has a gradient."""
        group = self.groups.get(name)
        self.free(*self._narrow.pop(name, ()))
        self._sent.discard(name)
        if group is not None and group.gradients:
            self.reduce(group)
        elif group is not None:
            self._reshard(group)

    def reduce(self, group: Group) -> None:
        """The backward of ``split`` joins all gradients; then ``_post_backward_hook``, in the same stream:
        what was gathered comes back at once.
        """
        n_bytes = self._join(group)
        self.free(*group.whole)
        group.whole = []
        if self.reduces:
            self._reduce_grad(group, n_bytes / self.sizes.n)

    def _join(self, group: Group) -> float:
        """Gradients in one tensor, with zeros for frozen parameters; gives its bytes.

        It runs in the stream in which parameters were split, which is the one that gathers.  Until the host
        has waited for the next group, the gradients that compute made are in use there.  Those that are not
        reduced yet are added to those of the micro-step before.
        Source: torch 2.13 csrc/autograd/engine.cpp evaluate_function (the stream of a node is that of its
        forward), input_buffer.cpp accumulate (``record_stream``).
        """
        mixes = not self.job.stack.fsdp1_wraps_adapters
        known = zip(group.weights, group.seen_bytes, strict=True)
        frozen = [n_bytes for each, n_bytes in known if not each.trained and (mixes or each.unread)]
        width = ELEMENT_BYTES[group.gradients[0].dtype]
        zeros = [self.take(n_bytes, "gradients", "zeros", GATHER_STREAM) for n_bytes in frozen]
        n_bytes = sum(each.elements for each in group.gradients) * width + sum(frozen)
        flat = self.take(n_bytes, "gradients", "cat", GATHER_STREAM)
        self.free(*zeros)
        small = [each.elements * width <= SMALL_REQUEST_BYTES for each in group.gradients]
        for each, is_small in zip(group.gradients, small, strict=True):
            self._free_late(group, each.slot, min(small.count(is_small), MOST_LAG))
            is_sum = self.stream.place(each.slot)[2] == "add"
            if is_sum and self.job.model.tied and each.module == self.job.model.token_embedding.name:
                self.stream.streams[each.slot] = GATHER_STREAM  # summed where it is used
        group.gradients = []
        if group.flat is None:
            group.flat = flat
        else:
            self.free(flat)
        return n_bytes

    def _reduce_grad(self, group: Group, part: float) -> None:
        """``_reduce_grad``: this GPU's part, then in the dtype of the shards, or added to what is there.

        What goes to the host stays here until backward ends, too (``_saved_grad_shard``).
        """
        trained = [each for each in group.weights if each.trained]
        # A value head in fp32 has a gradient, though its weight is too small to be among them.
        compute = self.job.recipe.numerics.compute_dtype
        seen = ELEMENT_BYTES[self.sizes.seen(trained[0]) if trained else compute]
        stored = ELEMENT_BYTES[self.sizes.stored(trained[0]) if trained else "fp32"]
        kept = self.take(part, "gradients", "new_sharded_grad", REDUCE_STREAM)
        if group.flat is not None:
            self._free_late(group, group.flat, _GRADIENT_LAG)
            group.flat = None
        if stored != seen:
            narrow, kept = (
                kept,
                self.take(part / seen * stored, "gradients", "_cast_grad_to_param_dtype", REDUCE_STREAM),
            )
            self.free(narrow)
        if group.reduced is not None:
            self.free(kept)
        else:
            group.reduced = kept

    def end_of_backward(self, phases: Pass) -> None:
        """``prepare_gradient_for_optim``: gradients on the host take the place of those here."""
        ending, self._ending = self._ending, None
        for name in [*([ending] if ending else []), *self.groups]:
            if self.groups[name].whole or self.groups[name].gradients:
                self._end(name)
        super().end_of_backward(phases)
        for group in self.groups.values() if self.offloads else ():
            self.free(group.reduced)
            group.reduced = None

    def _free_late(self, group: Group, slot: int, lag: int) -> None:
        """What the root's backward leaves is the last, and the next forward pass waits for it."""
        if group.stays:
            self.stream.free(slot)
        else:
            self.stream.free_late(slot, lag)

    def _reshard(self, group: Group) -> None:
        """``_reshard``: the compute stream still uses what it gives back to the gathers."""
        for slot in group.whole:
            self.stream.free_late(slot, _GATHER_LAG)
        group.whole = []

    def _initialise(self) -> None:
        """``init_flat_param_attributes``: tensors are made, and their memory is given back at once."""
        self._initialised = True
        for group in self.groups.values():
            whole = group.whole_bytes
            made = (
                [whole / self.sizes.n, whole, group.shard_bytes * self.sizes.n] if group.narrows else [whole]
            )
            for n_bytes in made:
                self.free(self.take(n_bytes, "gathered_parameters", "init_flat_param_attributes"))

    def _cast(self, n_bytes: float, op: str) -> int:
        return self.take(n_bytes, "gathered_parameters", op, CAST_STREAM)
