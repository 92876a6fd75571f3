"""FSDP2: parameters arrive in a buffer and are copied out of it;
gradients are copied into another one to be reduced.

Source: torch 2.13 distributed/fsdp/_fully_shard/_fsdp_param_group.py and _fsdp_collectives.py, whose
functions the methods name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.domain.stack_values import ADAPTERS_APART, RETURNED, Fsdp2Units
from planner.program.engines.fsdp.fsdp import GATHER_STREAM, REDUCE_STREAM, Fsdp
from planner.program.engines.fsdp.fsdp_units import INNER
from planner.program.engines.groups import ROOT, TABLE, TAIL, Gradient, Group
from planner.program.job import Job, reference_job
from planner.program.load import arrive
from planner.program.ops.tensors import ELEMENT_BYTES, PartStage, Unit
from planner.program.parameters import Weight, model_weights
from planner.program.request_stream import Instance, RequestStream
from planner.program.runtime import Part, Pass

_IN_ROOT: dict[Fsdp2Units, tuple[str, ...]] = {
    "ends_apart": (),
    "ends_in_root": (TAIL,),
    "root_divided": (TABLE, TAIL),
    "all_in_root": (TABLE, TAIL),
    "root_whole": (TABLE, TAIL),
    "root_returned": (TABLE, TAIL),
    "ends_returned": (),
}
"""Which units around the layers are the root's."""


_FIRST = ("lora_A",)
"""The module of an adapter that runs first."""


class Fsdp2(Fsdp):
    """One process.  Slots: ``_kept``, the last buffer that was received; ``_sent``,
    the last one that is reduced.  ``_with_adapters``: layers in which units of adapters run.
    """

    def __init__(self, stream: RequestStream, job: Job) -> None:
        super().__init__(stream, job)
        self._adapters_apart = job.stack.fsdp2_units in ADAPTERS_APART and job.recipe.adapter is not None
        self._with_adapters: set[str] = set()
        self._widens = job.stack.fsdp_reduces_fp32
        self.adds_gradients = self.reduces_last_only and not self._widens
        self._replicates = int(job.recipe.copies(job.hardware)) > 1
        self._kept: int | None = None
        self._sent: int | None = None
        self._replicating: int | None = None
        self._ends = (job.model.token_embedding.name, job.model.head.name)
        self._reference: Group | None = None
        own_unit = self._head_alone and job.stack.fsdp2_units == "ends_apart"
        self._reads_head = job.scenario.reads_head and own_unit

    def load_weights(self) -> list[Weight]:
        """A second model comes before: whole, then divided as one group, and it is not widened.

        Then the Trainer empties the cache.
        Source: trl 1.9.0 and 1.16.0 models/utils.py prepare_fsdp (``fully_shard(model)``); transformers 5.23
        trainer.py (``free_memory``).
        Ignored: what a process sends to the others while it reads the model.
        """
        if self.job.recipe.has_reference_model:
            job, stream = reference_job(self.job), self.stream
            stream.enter("load")
            weights = [replace(each, trained=False) for each in model_weights(job)]
            arrive(stream, job, weights)
            self._reference = Group(weights, stays=not job.recipe.sharding.divides_weights)
            self.measure(self._reference)
            for each in weights:
                stream.allocate(
                    Unit.ONE, self.sizes.stored_bytes(each), "weights", ("load", each.name, "shard")
                )
            self.free(*(each.slot for each in weights))
            stream.empty_cache()
        return super().load_weights()

    def make_groups(self, weights: list[Weight]) -> dict[str, Group]:
        """Each layer; the token table; the last norm with the head, and a table that is tied to it;
        the root with what is left.

        Where the root has these ends (``fsdp2_units``), its weights are divided again like those of others,
        or stay whole with all that lies around the layers, and with the last layer.
        Source: accelerate 1.15 utils/fsdp_utils.py fsdp2_prepare_model; ``_find_final_norm`` looks for the
        norm behind PEFT's wrapper and in the text part of a model that sees in vain, so the root has it.
        torchtitan 9dec370 parallelisms/parallelize_llama.py apply_fsdp.
        Ignored: that adapters may be units of their own, which are small.
        """
        model, kind = self.job.model, self.job.stack.fsdp2_units
        inside = self.job.recipe.adapter is not None or model.vision is not None
        whole = kind in ("ends_apart", "root_whole") or self.job.stack.fsdp2_root_stays
        groups = {ROOT: Group([], stays=whole), TABLE: Group([])}
        units = [self.units.of(each) for each in weights]
        groups |= {unit: Group([]) for unit in units if unit}
        if kind == "root_whole":
            last = f"layer {model.n_layers - 1}"
            groups |= {unit: Group([], stays=True) for unit in groups if unit in (last, last + INNER)}
        groups[TAIL] = Group([], stays=kind not in RETURNED)
        tail = [] if inside else [each for each in weights if each.name.startswith("norm ")]
        for each, unit in zip(weights, units, strict=True):
            name = unit or ROOT
            if each.name == model.token_embedding.name:
                name = TAIL if model.tied else TABLE
            elif each.name.startswith("head") or each in tail:
                name = TAIL
            groups[ROOT if name in _IN_ROOT[kind] else name].weights.append(each)
            if each.name == model.token_embedding.name and model.tied and self.job.stack.fsdp2_parts_tied:
                groups[ROOT if TAIL in _IN_ROOT[kind] else TAIL].weights.append(each)
        groups[TAIL].weights.sort(key=lambda each: each.kind != "norm")
        return groups

    def end_of_forward(self) -> None:
        """``_post_forward`` of the root: the last buffer goes, as it does when the next group is copied."""
        self.free(self._kept)
        self._kept = None

    def end_of_backward(self, phases: Pass) -> None:
        """``_root_post_backward_final_callback`` and ``finalize_backward``:
        also gathers that nobody waited for go.
        """
        super().end_of_backward(phases)
        for group in self.groups.values():
            self.free(group.received)
            group.received = None
        self.free(self._sent, self._replicating)
        self._sent = self._replicating = None

    def unshard(self, group: Group) -> None:
        """``unshard``: shards, cast together where they are wider (``use_foreach_copy``),
        go into the buffer that the others' shards arrive in.  One process alone has nothing to receive.
        """
        if group.received is not None or group.whole or self._copies_own(group):
            return
        sizes, given = self.sizes, []
        for each in group.weights if self.offloads else ():
            shard = self._gather(sizes.stored_bytes(each), "shard from the host")
            if sizes.stored(each) != sizes.seen(each):
                uploaded, shard = shard, self._gather(sizes.seen_bytes(each) / group.n, "all_gather_input")
                self.free(uploaded)
            given.append(shard)
        whole = group.whole_bytes
        if self.mixed and not self.offloads:
            # torchao 0.18.0 float8/fsdp_utils.py fsdp_pre_all_gather: each shard by itself, then all in one.
            given += [
                self._gather(sizes.seen_bytes(each) / group.n, "shard in fp8")
                for each in (group.weights if sizes.gathers_fp8 else ())
                if sizes.seen(each) == "fp8"
            ]
            if group.cast_bytes:
                given.append(self._gather(group.cast_bytes / group.n, "all_gather_input"))
        group.received = self._gather(whole, "all_gather_output")
        self.free(*given)

    def wait(self, group: Group, *, forward: bool) -> None:
        """``wait_for_unshard``: copied into parameters; in forward the buffer stays until the next group is
        copied, to whose end a variable (``prev_all_gather_state``) refers to it.
        """
        if group.received is None:
            if self._copies_own(group) and not group.whole:
                self.copy_own(group, forward=forward)
            return
        place = ("fsdp", "", "unsharded parameter")
        group.whole = self.stream.allocate_all(group.seen_bytes, "gathered_parameters", place)
        if forward:
            self.free(self._kept)
            self._kept = group.received
        else:
            self.free(group.received)
        group.received = None

    def _copies_own(self, group: Group) -> bool:
        """Whether parameters are copied from the shards of the one process that there is.

        Source: torch 2.13 _fsdp_param_group.py wait_for_unshard, so since pytorch#160135 (2025-08).
        Ignored: older torch, shards on the host, and those that travel in 8 bits.
        """
        return group.n == 1 and not (self.offloads or self.sizes.gathers_fp8)

    def copy_own(self, group: Group, *, forward: bool) -> None:
        """Each parameter is cast and copied; a variable refers to the cast until the next one is there."""
        before: int | None = None
        for each, n_bytes in zip(group.weights, group.seen_bytes, strict=True):
            casts = self.sizes.stored(each) != self.sizes.seen(each)
            cast = self.take(n_bytes, "gathered_parameters", "cast of the shard") if casts else None
            self.free(before)
            group.whole.append(self.take(n_bytes, "gathered_parameters", "unsharded parameter"))
            before = cast
        self.free(before)
        if forward:
            self.free(self._kept)
            self._kept = None

    def _run(self, part: Instance, stage: PartStage) -> None:
        """A layer whose adapters are units of their own: the first of them is the next group that is copied,
        and in backward the one that sends for the layer before.

        Kernels that read the matrices of adapters call no such unit.
        Ignored: memory of these units.
        """
        moment = "before_forward" if stage == "forward" else "before_backward"
        found = list(part.between_marks(stage, (moment,))) if self._adapters_apart else []
        modules = part.template.modules
        own = [index for index, (_, mark) in enumerate(found) if mark and modules[mark.number][-1:] == _FIRST]
        if not own or self.units.inside:
            super()._run(part, stage)
            return
        self._with_adapters.add(part.name)
        at = own[0] if stage == "forward" else own[-1]
        for index, (events, _) in enumerate(found):
            self.stream.events += events
            if index == at and stage == "forward":
                self.end_of_forward()
            elif index == at:
                super().send_for_next(part.name)

    def send_for_next(self, name: str) -> None:
        """A layer with units of adapters leaves that to the first of them."""
        if name not in self._with_adapters:
            super().send_for_next(name)

    def run_aside(
        self, parts: Sequence[Part], cached: list[Instance] | None = None, *, waits: bool = False
    ) -> list[Instance]:
        """A pass without gradients does not keep the head that its loss has read."""
        made = super().run_aside(parts, cached, waits=waits)
        if self._reads_head:
            self._reshard(self.groups[TAIL])
        return made

    def run_beside(self, parts: Sequence[Part]) -> list[Instance]:
        """A second model is one group: all of it is whole during its pass."""
        group = self._reference
        if group is None:
            return super().run_beside(parts)
        groups, self.groups = self.groups, {}
        self.unshard(group)
        self.wait(group, forward=True)
        made = super().run_beside(parts)
        self.groups = groups
        if not group.stays:
            self._reshard(group)
        return made

    def _before_forward(self, name: str) -> None:
        """A head of its own is not called by a loss that reads its weight, which gathers it by itself.

        Source: trl 1.16.0 trainer/utils.py add_fused_lm_head (``full_tensor``), whose function keeps it for
        its backward.
        Ignored: heads that are trained beside adapters.
        """
        if name != TAIL or not self._reads_head:
            super()._before_forward(name)
            return
        group = self.groups[TAIL]
        group.whole = [self.take(group.shard_bytes * group.n, "gathered_parameters", "full_tensor")]

    def _after_forward(self, name: str, *, again: bool = False) -> None:
        """``post_forward``: in backward, where a checkpoint runs a module again, nothing is given back.

        The unit inside of a layer is then the root of that forward, of which the last buffer goes.
        """
        if again:
            self.end_of_forward()
        if not again and not (name == TAIL and self._reads_head):
            super()._after_forward(name)

    def _after_backward(self, name: str) -> None:
        """``unsharded_grad_data``: of a table's whole gradient this GPU's rows are copied."""
        group, parts = self.groups.get(name), self.job.model.parts
        if group is not None and name == TABLE and parts > 1 and self.reduces and self.reduces_last_only:
            whole, group.gradients = group.gradients, []
            for each in whole:
                elements = each.elements / parts
                slot = self.take(elements * ELEMENT_BYTES[each.dtype], "gradients", "own rows")
                self.free(each.slot)
                group.gradients.append(replace(each, elements=elements, slot=slot))
        super()._after_backward(name)

    def _before_backward(self, name: str) -> None:
        if name != TAIL or not self._reads_head:
            super()._before_backward(name)

    def reduce(self, group: Group) -> None:
        """``post_backward`` and ``foreach_reduce``: gradients are copied together and reduced to this GPU's
        part.  A variable of its loop (``unsharded_grad``) refers to the last one until the function returns.
        """
        if self._widens and (group.sums or not self.reduces):
            self.add_up(group)
        if not self.reduces:
            return
        self.take_sums(group)
        self.free(self._sent)
        self._sent = None
        if group.gradients:
            self.free(self._replicating)
            self._replicating = None
            first = group.gradients[0]
            first = replace(first, dtype="fp32") if self.job.stack.fsdp_reduces_fp32 else first
            elements, dtype = self.elements_of(group), first.dtype
            self._sent = self.take(
                elements * ELEMENT_BYTES[dtype], "gradient_buckets", "reduce_scatter_input"
            )
            # One process alone has no such loop.
            last = self.last_gradient(group) if group.n > 1 else None
            self.free(*(each.slot for each in group.gradients if each.slot != last))
            group.gradients = []
            self._keep_part(group, elements / group.n, first)
            self.free(last)

    def last_gradient(self, group: Group) -> int | None:
        """The one of the last parameter where it is large; of a layer that is a norm."""
        ends = [each.slot for each in group.gradients if each.module in self._ends]
        return ends[-1] if ends else None

    def add_up(self, group: Group) -> None:
        """``to_accumulated_grad_if_needed``: what is not reduced yet waits in fp32, whole; later gradients
        are added to it (``accumulate_unsharded_grad_if_needed``).
        """
        made, group.gradients = group.gradients, []
        found = bool(group.sums)
        for each in made:
            if not found:
                slot = self.take(each.elements * ELEMENT_BYTES["fp32"], "gradients", "accumulated gradient")
                group.sums.append(replace(each, dtype="fp32", slot=slot))
            self.free(each.slot)

    @staticmethod
    def take_sums(group: Group) -> None:
        """What waits is reduced now."""
        if group.sums:
            group.gradients, group.sums = group.sums, []

    def elements_of(self, group: Group) -> float:
        """Elements of the gradients that are reduced together, each with rows that make parts equal.

        Source: torch 2.13 distributed/fsdp/_fully_shard/_fsdp_collectives.py foreach_reduce
        (``_get_dim0_padded_size``).
        """
        return sum(each.elements for each in group.gradients) + self.sizes.padding(group.weights)

    def receive_part(self, group: Group, n_bytes: float) -> int:
        """Memory for this GPU's part of them."""
        del group
        return self.take(n_bytes, "gradient_buckets", "reduce_scatter_output", REDUCE_STREAM)

    def _keep_part(self, group: Group, part: float, first: Gradient) -> None:
        """This GPU's part in the dtype of the shards, which is added to what is there or goes to the host."""
        # A value head in fp32 has a gradient, though its weight is too small to be among them.
        stored = next((self.sizes.stored(each) for each in group.weights if each.trained), "fp32")
        received = self.receive_part(group, part * ELEMENT_BYTES[first.dtype])
        kept = received
        if stored != first.dtype:
            kept = self.take(part * ELEMENT_BYTES[stored], "gradients", "sharded gradient", REDUCE_STREAM)
            if self._replicates:
                self._replicating = received
            else:
                self.free(received)
        if self.offloads or group.reduced is not None:
            self.free(kept)
        else:
            group.reduced = kept

    def _gather(self, n_bytes: float, op: str) -> int:
        return self.take(n_bytes, "gathered_parameters", op, GATHER_STREAM)
