"""Saved tensors that wait for their backward in host RAM, without checkpointing (``OffloadActivations``).

A saved tensor is copied to the host by a stream of its own.  It stays on the GPU while that takes, which is
known when five later ones have been saved.  What is saved a second time meanwhile stays until its backward.
Backward brings a tensor back in memory of the other stream, and lets it go when the next node that brought
one back has run.  Products of the head save on the GPU.
Source: trl 1.9.0 and 1.16.0 models/activation_offloading.py (pack_tensor, unpack_tensor_with_streams,
get_act_offloading_ctx_manager).
Ignored: contiguous copies of what is saved in another layout; that five later ones may belong to the next
layer, before which all go here.
"""

from __future__ import annotations

from functools import partial

from planner.program.ops.operators import Operators
from planner.program.ops.tensors import ELEMENT_BYTES, Dtype, Tensor, Unit, Unpack, keep
from planner.program.ops.work import ToHost

_N_WAITING = 5
_HEAD = "lm_head"


class SavedOnHost:
    """The hooks of saved tensors of one part of the model."""

    def __init__(self, torch: Operators) -> None:
        self.torch = torch
        self.n_saved = 0
        # On the way to the host, by number; and the storages that are known, each with its last number.
        self.waiting: dict[int, Tensor] = {}
        self.known: dict[tuple[int, str], int] = {}
        self.back: dict[int, Tensor] = {}
        self.before: list[int] | None = None
        self.unpacks = self.nested = False

    def pack(self, tensor: Tensor) -> Unpack:
        """Send a saved tensor to the host, or keep it: weights, what is small, and what is there already."""
        if tensor.unit is Unit.ONE and tensor.count <= 1:
            return keep(tensor)
        self.n_saved += 1
        number, storage = self.n_saved, tensor.storage
        if _HEAD in self.torch.modules[self.torch.path[-1]]:
            return keep(tensor)
        if storage is None:
            return keep(tensor) if tensor.unit is Unit.ONE else partial(self._number_back, tensor)
        key = (storage.slot, tensor.dtype)
        if key in self.known:
            self.known[key] = number
            return keep(tensor)
        for each in [each for each in self.waiting if each <= number - _N_WAITING]:
            self._arrived(each)
        size = tensor.count * ELEMENT_BYTES[tensor.dtype]
        self.torch.spend(ToHost(size), tensor.unit, size)
        self.known[key], self.waiting[number] = number, tensor.alias()
        unit, count, dtype = tensor.unit, tensor.count, tensor.dtype
        return lambda: self._unpack(number, unit, count, dtype)

    def _unpack(self, number: int, unit: Unit, count: float, dtype: Dtype) -> Tensor:
        self._unpacks()
        if number in self.waiting:
            return self.waiting[number].alias()
        tensor = self.torch.new(unit, count, dtype, "to", cost=None)
        if tensor.storage is not None:
            self.torch.elsewhere.append(tensor.storage.slot)
        self.back[number] = tensor
        return tensor.alias()

    def _number_back(self, tensor: Tensor) -> Tensor:
        """Numbers of tokens, which are no memory here, leave and come back as all else does."""
        self._unpacks()
        return tensor.alias()

    def _unpacks(self) -> None:
        """The node that runs brings something back: its hook will let go of what others brought before."""
        self.unpacks = True
        if self.torch.n_graphs == 1 and self.before is None:
            self.before = [*self.back]

    def _arrived(self, number: int) -> None:
        """What is on the host goes from the GPU, as far as the hooks refer to it."""
        del self.waiting[number]
        for key in [key for key, last in self.known.items() if last == number]:
            del self.known[key]

    def end_forward(self) -> None:
        """What waits goes: the next part of the model saves, or backward has begun."""
        for number in [*self.waiting]:
            self._arrived(number)

    def end_node(self) -> None:
        """The hook of a node that has unpacked something; those of an inner graph let nothing go."""
        if not self.unpacks:
            return
        self.unpacks = False
        self.end_forward()
        if self.torch.n_graphs > 1:
            self.nested = True
        elif self.before is not None:
            for number in self.before:
                self.back.pop(number, None)
            self.before = None

    def end_backward(self) -> None:
        """The next part goes back: at once, or after all of it where its graph lies inside another one."""
        self.torch.pack, self.torch.end_node = keep, None
        self.waiting.clear()
        if not self.nested:
            self.back.clear()


def on_host(torch: Operators) -> SavedOnHost:
    """The hooks, set for all that is saved from now on."""
    hooks = SavedOnHost(torch)
    torch.pack, torch.end_node = hooks.pack, hooks.end_node
    return hooks
