"""Where the program is: its pass, its module, its step; and which tensors are weights,
gradients and optimizer states.
"""

# ruff: noqa: SLF001 - what torch calls private here has no public name

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from measure.dry_run.cuda.card import said_to_allocator
from measure.dry_run.cuda.native import Native
from measure.trace.record import Role, Stage
from measure.trace.running_module import ModuleStack

_CONSTANTS = ("absmax", "code", "offset", "SCB")
# Of adapters that PEFT keeps elsewhere than beside what they adapt, and of those of other libraries.
_ADAPTER_MARKS = ("lora_", "modules_to_save", "vera_", "prompt_encoder")
# What PEFT calls the module that it adapts.  Source: peft 0.13.2 and 0.21.2, tuners/*/layer.py.
_ADAPTED = "base_layer"


class StepsDone(BaseException):
    """As many optimizer steps as were asked for have run.  No error, so that programs do not catch it."""


class Followed(ModuleStack):
    """Follows every module that is called, without being told which ones there are."""

    def __init__(self, moved: Callable[[], None], began: Callable[[nn.Module], None]) -> None:
        super().__init__()
        self._moved, self._began = moved, began

    def _name_of(self, module: nn.Module) -> str:
        if not self._stack:
            # A layer that is computed again in the backward pass is called from outside as well,
            # and has its name.
            if id(module) not in self._names:
                self.learn(module, longest_list(module))
            self._began(module)
        return super()._name_of(module)

    def _note(self) -> None:
        super()._note()
        self._moved()


def _is_compiling() -> bool:
    """Whether torch.compile looks at the program, whose calls are none of the program's then."""
    return torch.compiler.is_compiling() or torch._guards.TracingContext.try_get() is not None


def longest_list(model: nn.Module) -> str | None:
    """What names begin with of the modules in the list that holds most: the layers of most models.

    Of equals the outermost, and the last of those, which is the decoder behind an encoder; ``None`` where
    there is none.  A model may be such a list itself; an empty one, or one with names for numbers, is none.
    """
    lists = [
        (len(each), f"{name}." if name else "")
        for name, each in model.named_modules()
        if isinstance(each, nn.ModuleList | nn.Sequential) and len(each) and _is_numbered(each)
    ]
    return max(reversed(lists), key=lambda found: (found[0], -found[1].count(".")))[1] if lists else None


def _is_numbered(several: nn.Module) -> bool:
    return all(map(str.isdigit, several._modules))


def beside_adapted(model: nn.Module) -> set[int]:
    """Identities of the tensors that PEFT has laid beside the modules that it adapts."""
    wrappers = [each for each in model.modules() if _ADAPTED in each._modules]
    return {
        id(tensor)
        for each in wrappers
        for name, tensor in (*each.named_parameters(), *each.named_buffers())
        if not name.startswith(f"{_ADAPTED}.")
    }


class Stages:
    """Tells the log where the program is, and keeps roles of blocks by their numbers.

    ``most_tokens``: rows and tokens of the largest batch.  ``allocator``: settings of torch's allocator that
    the program runs with.  ``places`` gives stage, micro-step and module path by the number in the log.
    ``n_steps``: optimizer steps to run.  ``evaluates``: an evaluation follows the last one, so that the
    program stops where it begins to train again.
    """

    def __init__(self, native: Native, n_steps: int, *, evaluates: bool = False) -> None:
        self.native = native
        self.modules = Followed(self._moved, self._began)
        self.places: list[tuple[Stage, int, str]] = []
        self.roles: dict[int, Role] = {}
        self.steps_done = self.micro_steps = 0
        self.backwards = self._counted = 0
        self.most_tokens = (0, 0)
        self.allocator = ""
        self._numbers: dict[tuple[Stage, int, str], int] = {}
        self.n_steps, self.evaluates = n_steps, evaluates
        self._stage: Stage = "load"
        # A program that lets a model go gets its memory back.
        self._models: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()
        self._trained: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()
        self._moved()

    def install(self) -> None:
        """Follow modules, backward passes and optimizers, in this process and for good."""
        self._following = self.modules.following()
        self._following.__enter__()
        self._follow_backward()
        self._follow_tokens()
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)

    def enter(self, stage: Stage) -> None:
        """Say which pass begins."""
        self._stage = stage
        self._moved()

    def _moved(self) -> None:
        place = self._stage, max(self.micro_steps - 1, 0), self.modules.path
        number = self._numbers.get(place)
        if number is None:
            number = self._numbers[place] = len(self.places)
            self.places.append(place)
        self.native.set_place(number)

    def _began(self, module: nn.Module) -> None:
        """A module is called from outside of all others: the model, or a loss that is a module."""
        if self.backwards or _is_compiling() or next(module.parameters(), None) is None:
            return
        if id(module) not in self._models:
            self._models[id(module)] = module
            self._mark_weights(module)
        if module.training:
            self._trained[id(module)] = module
        if torch.is_grad_enabled() and self._is_trained(module):
            if self.steps_done >= self.n_steps:
                raise StepsDone
            self.micro_steps += 1
            self.enter("forward")
        else:
            self.enter("eval")

    def _is_trained(self, module: nn.Module) -> bool:
        """Whether a call with gradients is of training.

        Transformers loads models for evaluation, and not every loop changes that: one that was never set to
        train is trained as it is.
        """
        if id(module) in self._trained:
            return module.training
        return any(each.requires_grad for each in module.parameters())

    def _follow_backward(self) -> None:
        run = torch.autograd.graph._engine_run_backward

        def follow(*args: Any, **kwargs: Any) -> Any:
            if _is_compiling():
                return run(*args, **kwargs)
            if self.backwards == 0:
                self.allocator = said_to_allocator()
                self.enter("backward")
            self.backwards += 1
            try:
                return run(*args, **kwargs)
            finally:
                self.backwards -= 1
                if self.backwards == 0:
                    self._mark_gradients()
                    self.enter("optimizer_step")

        torch.autograd._engine_run_backward = follow  # type: ignore[attr-defined]
        torch.autograd.graph._engine_run_backward = follow

    def _follow_tokens(self) -> None:
        """Note the largest batch of training that is looked up in the largest embedding,
        which is that of tokens and not of positions.
        """
        embedding = torch.nn.functional.embedding

        n_words = 0

        # The names are torch's own.
        def follow(
            input: torch.Tensor,  # noqa: A002
            weight: torch.Tensor,
            *args: Any,
            **kwargs: Any,
        ) -> torch.Tensor:
            nonlocal n_words
            if torch.compiler.is_compiling():
                return embedding(input, weight, *args, **kwargs)
            if self._stage == "eval":
                return embedding(input, weight, *args, **kwargs)
            if weight.shape[0] > n_words:
                n_words, self.most_tokens = weight.shape[0], (0, 0)
            whole = weight.shape[0] == n_words and input.dim() > 0
            if whole and input.numel() > self.most_tokens[0] * self.most_tokens[1]:
                self.most_tokens = input.numel() // max(input.shape[-1], 1), input.shape[-1]
            return embedding(input, weight, *args, **kwargs)

        torch.nn.functional.embedding = follow

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        del optimizer
        self._mark_gradients()
        self.enter("optimizer_step")

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for state in optimizer.state.values():
            for value in state.values() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor):
                    self._mark(value, "optimizer_states")
        # ZeRO-3 steps group by group, and layerwise optimizers parameter by parameter:
        # one step of the program all the same.
        if self.micro_steps > self._counted:
            self.steps_done, self._counted = self.steps_done + 1, self.micro_steps
        # An optimizer that steps in the backward pass has not seen all of it: the next forward pass ends it.
        if self.steps_done >= self.n_steps and not self.evaluates and self.backwards == 0:
            raise StepsDone

    def _mark(self, tensor: torch.Tensor, role: Role) -> None:
        # Of a tensor that is divided among ranks, this rank's part; of torchao's states, codes and constants.
        if is_traceable_wrapper_subclass(tensor):
            # Those of a DTensor name its mesh as well.
            for inner in (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]):
                if isinstance(inner, torch.Tensor):
                    self._mark(inner, role)
        elif tensor.is_cuda and not torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            block = self.native.block_at(tensor.untyped_storage().data_ptr())
            if block >= 0:
                self.roles.setdefault(block, role)

    def _mark_weights(self, model: nn.Module) -> None:
        adapters = beside_adapted(model)
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            # What PEFT's X-LoRA calls the model that has the adapters.
            marked = name.replace("lora_model.", "")
            adapter = id(tensor) in adapters or any(mark in marked for mark in _ADAPTER_MARKS)
            self._mark(tensor, "adapters" if adapter else "weights")
            self._mark_constants(getattr(tensor, "quant_state", None))
            self._mark_constants(tensor)

    def _mark_constants(self, holder: Any) -> None:
        """The constants of a quantised matrix,
        which bitsandbytes keeps as attributes of it and of its state.
        """
        for name in _CONSTANTS:
            value = getattr(holder, name, None)
            if isinstance(value, torch.Tensor):
                self._mark(value, "quantization_constants")
        nested = getattr(holder, "state2", None)
        if nested is not None:
            self._mark_constants(nested)

    def _mark_gradients(self) -> None:
        for model in list(self._models.values()):
            for tensor in model.parameters():
                if tensor.grad is not None:
                    self._mark(tensor.grad, "gradients")
