"""Records every storage that operators allocate and free while real modules run,
and where in the model that happens.
"""

# ruff: noqa: SLF001 - what torch calls private here has no public name

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from measure.trace.cuda.sdpa import PRODUCTS
from measure.trace.cuda.softmax import READS_COPIES
from measure.trace.record import OUTSIDE, Place, Record, Role, Stage, Trace, TracedBlock
from measure.trace.running_module import ModuleStack

# An AccumulateGrad node has no place in the forward pass: torch gives it the largest number
# (torch/csrc/autograd/function.h).
_ACCUMULATE_GRAD = 2**64 - 1
# Uses of a tensor, and of its storage,
# that a gradient has inside of a dispatch mode when only autograd's buffer holds it.
_USES_OF_LAST, _STORAGE_USES_OF_LAST = 4, 2
_Operator = Any
_ADD, _ADD_IN_PLACE = torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor
# What formulas of gradients add to fresh zeros: in place, unless a dispatch mode is on (gather_backward,
# index_backward, value_selecting_reduction_backward of torch 2.13 torch/csrc/autograd/FunctionsManual.cpp).
_ADDED_TO_ZEROS = {
    torch.ops.aten.scatter_add.default: torch.ops.aten.scatter_add_.default,
    torch.ops.aten.scatter.src: torch.ops.aten.scatter_.src,
    torch.ops.aten.index_put.default: torch.ops.aten.index_put_.default,
}
# Where the engine calls the ``backward`` of a function in Python, and where a backward pass begins.
_PYTHON_BACKWARD = frozenset(
    getattr(BackwardCFunction, name).__code__
    for name in ("apply", "apply_boxed")
    if hasattr(BackwardCFunction, name)
)
_ENGINE = torch.autograd.graph._engine_run_backward.__code__


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that sees every operator below autograd, forward and backward.

    ``kernel_workspaces`` gives the bytes that the CUDA kernel of an operator takes and returns while it runs,
    by the operator.  ``product_workspace_bytes`` is taken at the first matrix product of each thread and kept
    (torch 2.13 CublasHandlePool.cpp, ``myPoolWindow``: each has a handle of cuBLAS).  ``keep_operators``
    keeps the operator stream as well, with shapes, for comparisons.
    """

    device = "cpu"
    """On which fake tensors stand for those of the card."""

    def __init__(
        self,
        kernel_workspaces: dict[_Operator, Callable[..., list[int]]] | None = None,
        *,
        product_workspace_bytes: int = 0,
        keep_operators: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = Trace()
        self.modules = ModuleStack()
        self._workspaces = kernel_workspaces or {}
        self._product_workspace_bytes = product_workspace_bytes
        self._threads_that_multiplied: set[bool] = set()
        self._keep_operators = keep_operators
        self._stage: Stage = "load"
        self._micro_step = 0
        self._place = Place("load", 0)
        self._source_place = self._place
        self._last_path = ""
        self._last_operator = ""
        self._storages: dict[int, TracedBlock] = {}
        self._parts_of_sums: dict[int, tuple[TracedBlock, ...]] = {}
        self._host = 0
        self._closed = False
        self._next_id = 0

    def enter_stage(self, stage: Stage, micro_step: int = 0) -> None:
        """Say which pass begins."""
        self._stage, self._micro_step, self._last_path = stage, micro_step, ""
        self._place = self._source_place = Place(stage, micro_step)

    def close(self) -> None:
        """End the trace: what is freed when the model itself goes away is no part of it."""
        self._closed = True

    @property
    def last_path(self) -> str:
        """Module of the operator that ran last, empty outside of modules."""
        return self._last_path

    @property
    def last_operator(self) -> str:
        """The operator that ran last, empty before the first."""
        return self._last_operator

    def block_of(self, tensor: torch.Tensor) -> TracedBlock | None:
        """The block behind ``tensor``, if it was allocated while recording."""
        return self._storages.get(tensor.untyped_storage()._cdata)

    def mark(self, tensor: torch.Tensor, role: Role) -> None:
        """Say what the block behind ``tensor`` is for.

        What autograd summed to a gradient is part of one:
        a table that is tied to the head gets a gradient of each of its uses.
        """
        block = self.block_of(tensor)
        if block is None:
            return
        block.role = role
        if role == "gradients":
            self._mark_parts(block)

    def _mark_parts(self, block: TracedBlock) -> None:
        for part in self._parts_of_sums.pop(block.id, ()):
            if part is not block:
                part.role = "gradient_parts"
            self._mark_parts(part)

    @contextmanager
    def on_host(self) -> Iterator[None]:
        """Tensors made inside live in host memory on a CUDA machine too, so they are not recorded."""
        self._host += 1
        try:
            yield
        finally:
            self._host -= 1

    def take(self, n_bytes: int, op: str, role: Role = "") -> TracedBlock:
        """Record a block that no tensor stands for; the caller releases it with :meth:`give_back`,
        or keeps it.
        """
        self._locate()
        block = self._new_block(n_bytes, op)
        block.role = role
        return block

    def keep_on_host(self, n_bytes: int, op: str, like: torch.Tensor) -> None:
        """Record host memory that an optimizer keeps for the tensor ``like``,
        of the layer that this is in.
        """
        block = self._new_block(n_bytes, op)
        block.place = Place(self._stage, self._micro_step, self._layer_behind(like))
        block.on_host = True

    def give_back(self, block: TracedBlock) -> None:
        """Record the free of a block from :meth:`take`."""
        self.trace.records.append(Record(False, block, self._place))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:
            return func(*args, **(kwargs or {}))
        self._locate()
        if self._product_workspace_bytes and func in PRODUCTS:
            self._take_product_workspace()
        self._last_operator = str(func)
        workspace = self._workspaces.get(func)
        taken = (
            [self.take(size, f"{func} workspace") for size in workspace(*args, **(kwargs or {})) if size]
            if workspace
            else []
        )
        summed = self._summed_gradients(func, args, kwargs)
        if func is _ADD and summed and self._sums_in_place(summed[0]):
            func = _ADD_IN_PLACE
        if func in _ADDED_TO_ZEROS and self._in_engine:
            func = _ADDED_TO_ZEROS[func]
        out = func(*args, **(kwargs or {}))
        if self._keep_operators:
            self.trace.operators.append(_describe(func, out))
        for index, leaf in enumerate(tree_leaves(out) if isinstance(out, list | tuple) else (out,)):
            if isinstance(leaf, torch.Tensor):
                self._track(leaf, func, args, index)
        if summed:
            self._note_sum(out, summed)
        taken += self._copies(func, args)
        for block in reversed(taken):
            self.give_back(block)
        return out

    def _copies(self, func: Any, args: Any) -> list[TracedBlock]:
        """What the CUDA kernel of ``func`` copies to read it without gaps."""
        if func not in READS_COPIES:
            return []
        tensors = (each for each in args if isinstance(each, torch.Tensor) and not each.is_contiguous())
        return [self.take(each.numel() * each.element_size(), f"{func} workspace") for each in tensors]

    def _summed_gradients(
        self, func: Any, args: Any, kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Two gradients of one tensor that autograd itself adds,
        or the new one of a parameter that has one already.

        A sum that a ``backward`` written in Python computes is none.
        """
        if not self._in_engine or func not in (_ADD, _ADD_IN_PLACE) or kwargs or len(args) != 2:
            return None
        if _in_python_backward():
            return None
        held, new = args
        same = isinstance(new, torch.Tensor) and held.shape == new.shape and held.dtype == new.dtype
        return (held, new) if same else None

    @property
    def _in_engine(self) -> bool:
        """Whether autograd's engine runs, and no layer that is computed again."""
        return self._stage == "backward" and not self.modules.path and not torch.is_grad_enabled()

    def _take_product_workspace(self) -> None:
        """At the first product of the program's thread, and of the one in which autograd's engine runs."""
        is_engine = self._stage == "backward"
        if is_engine not in self._threads_that_multiplied:
            self._threads_that_multiplied.add(is_engine)
            self.take(self._product_workspace_bytes, "cuBLAS workspace", "workspace")

    def _note_sum(self, total: torch.Tensor, summed: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Remember what a sum was made of, in case that it turns out to be a gradient."""
        block = self.block_of(total)
        parts = tuple(part for each in summed if (part := self.block_of(each)) is not None)
        if block is None:
            return
        if block.role != "gradients":
            self._parts_of_sums[block.id] = parts
        elif parts[-1].id in self._parts_of_sums:
            parts[-1].role = "gradient_parts"
            self._mark_parts(parts[-1])

    @staticmethod
    def _sums_in_place(held: Any) -> bool:
        """Whether autograd would add a gradient in place to the one of that tensor that it has,
        were it not for this mode.

        It does where nothing else holds the first of them, and never under a dispatch mode or on fake
        tensors.  A gradient that is a view, as that of a linear layer's weight is, shares its memory with the
        tensor that it is a view of.
        Source: torch 2.13 torch/csrc/autograd/input_buffer.cpp can_accumulate_inplace,
        ATen/TensorSubclassLikeUtils.h.
        """
        storage_uses = torch._C._storage_Use_Count(held.untyped_storage()._cdata)
        return (
            held._use_count() <= _USES_OF_LAST
            and storage_uses <= _STORAGE_USES_OF_LAST
            and not held._is_view()
        )

    def _locate(self) -> None:
        """Work out the module of the operator that runs: from the call stack,
        or from the autograd node in the backward pass.
        """
        path = self.modules.path
        if not path and self._stage == "backward":
            node = torch._C._current_autograd_node()
            if node is not None:
                number = node._sequence_nr()
                path = self._last_path if number == _ACCUMULATE_GRAD else self.modules.path_at(number)
        if path != self._last_path:
            self._last_path = path
            self._place = Place(self._stage, self._micro_step, self.modules.layer_of(path))

    def _track(self, tensor: torch.Tensor, func: Any, args: Any, index: int) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._storages or self._host:
            return
        block = self._new_block(storage.nbytes(), str(func))
        if self._stage == "optimizer_step":
            self._place_by_source(block, args, index)
        if self._stage not in ("forward", "backward"):
            pass
        elif func is torch.ops.aten._to_copy.default:
            source = self.block_of(args[0])
            if source is not None and source.role in ("weights", "adapters"):
                narrow = args[0].element_size() == 1
                block.role = "dequantization" if narrow else "autocast_copies"
        elif func is torch.ops.aten.empty.memory_format and block.place.layer != OUTSIDE:
            block.role = "dequantization"
        self._storages[key] = block
        weakref.finalize(storage, self._freed, key, block).atexit = False

    def _place_by_source(self, block: TracedBlock, args: Any, index: int) -> None:
        """Optimizers work on tensors and lists of them outside of modules:
        a result belongs to the layer of its source.

        What is made from no tensor, such as the scales of 8-bit states,
        belongs to the tensor that was worked on before.
        """
        source = args[0] if args else None
        if isinstance(source, list | tuple) and any(isinstance(each, torch.Tensor) for each in source):
            layers = tuple(self._layer_behind(each) for each in source)
            if index < len(layers) > 1 and block.op != "aten.stack.default":
                block.place = Place(self._stage, self._micro_step, layers[index])
            else:
                block.part_layers = layers
        elif isinstance(source, torch.Tensor):
            block.place = self._source_place = Place(
                self._stage, self._micro_step, self._layer_behind(source)
            )
        else:
            block.place = self._source_place

    def _layer_behind(self, value: Any) -> int:
        block = self.block_of(value) if isinstance(value, torch.Tensor) else None
        return OUTSIDE if block is None else block.place.layer

    def _new_block(self, n_bytes: int, op: str) -> TracedBlock:
        recomputed = self._stage == "backward" and bool(self.modules.path)
        block = TracedBlock(self._next_id, n_bytes, self._place, op, self._last_path, recomputed)
        self._next_id += 1
        self.trace.records.append(Record(True, block, self._place))
        return block

    def _freed(self, key: int, block: TracedBlock) -> None:
        if self._storages.pop(key, None) is not None and not self._closed:
            self.trace.records.append(Record(False, block, self._place))


def _describe(func: Any, out: Any) -> str:
    """Operator with the shapes and dtypes of what it returned."""
    tensors = (leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor))
    shapes = " ".join(f"{str(each.dtype).removeprefix('torch.')}{list(each.shape)}" for each in tensors)
    return f"{func} -> {shapes}"


def _in_python_backward() -> bool:
    """Whether an operator is that of a function's own ``backward``, and not of a pass that this started."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _ENGINE:
        if frame.f_code in _PYTHON_BACKWARD:
            return True
        frame = frame.f_back
    return False
