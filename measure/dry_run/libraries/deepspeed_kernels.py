"""Kernels that DeepSpeed compiles when they are first needed.  Those of its optimizers write in place, on
the card and on the host, and take no memory; those that quantise do.  Beside them its question whether GPUs
that divide matrices (AutoTP) got the same batch, which is about values: they did.

Source: deepspeed 0.19.8 ops/adam/fused_adam.py, cpu_adam.py, ops/lion, ops/adagrad, and what each calls;
runtime/engine.py _configure_tensor_parallel_states (``check_dataloader_inputs_same_across_ranks``), since
0.16.4; :mod:`measure.dry_run.libraries.deepspeed_quantizer`.
"""

# ruff: noqa: SLF001 - what DeepSpeed calls private here has no public name

from __future__ import annotations

from functools import partial, wraps
from types import ModuleType, SimpleNamespace
from typing import Any

from measure.dry_run.cuda.cuda_bindings import nothing
from measure.dry_run.guesses import Guesses
from measure.dry_run.libraries.deepspeed_quantizer import quantizer
from measure.dry_run.libraries.importing import OnImport

_QUANTIZER = "quantizer"
_KERNELS = {
    "fused_adam": ("multi_tensor_adam",),
    "fused_lion": ("multi_tensor_lion",),
    "cpu_adam": ("create_adam", "adam_update", "adam_rollback", "destroy_adam"),
    "cpu_lion": ("create_lion", "lion_update", "destroy_lion"),
    "cpu_adagrad": ("create_adagrad", "adagrad_update", "destroy_adagrad"),
}


def install(imports: OnImport, guesses: Guesses) -> None:
    """Change DeepSpeed when the program imports it."""

    def change(module: ModuleType) -> None:
        load: Any = module.OpBuilder.load

        def load_or_stand_in(builder: Any, *args: Any, **kwargs: Any) -> Any:
            names = _KERNELS.get(builder.name)
            if names is None and builder.name != _QUANTIZER:
                return load(builder, *args, **kwargs)
            guesses.assume("kernels that DeepSpeed compiles", "not started", builder.name)
            if names is None:
                return quantizer()
            return SimpleNamespace(**dict.fromkeys(names, nothing))

        module.OpBuilder.load = load_or_stand_in

    imports.add("deepspeed.ops.op_builder.builder", change)
    imports.add("deepspeed.runtime.engine", partial(_same_batch, guesses))


def _same_batch(guesses: Guesses, module: ModuleType) -> None:
    """The first forward pass asks nothing."""
    engine: Any = module.DeepSpeedEngine
    configure = getattr(engine, "_configure_tensor_parallel_states", None)
    if configure is None:
        return

    @wraps(configure)
    def configured(self: Any, *args: Any, **kwargs: Any) -> None:
        configure(self, *args, **kwargs)
        guesses.assume("whether GPUs that divide matrices get the same batch", "yes", "deepspeed")
        self.first_dataloader_check.remove()

    engine._configure_tensor_parallel_states = configured
