"""DeepSpeed's optimizers find kernels that do nothing, and its other parts are compiled as ever."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.extras import needs

pytestmark = needs("torch")


def loaded(name: str) -> tuple[Any, list[Any]]:
    """What a builder of this name loads, and what was said of it."""
    from measure.dry_run.libraries.deepspeed_kernels import install

    class OpBuilder:
        def __init__(self) -> None:
            self.name = name

        def load(self, verbose: bool = False) -> str:
            return f"compiled {self.name} {verbose}"

    module, said = ModuleType("builder"), []
    vars(module)["OpBuilder"] = OpBuilder
    guesses = SimpleNamespace(assume=lambda *words: said.append(words))
    changes: dict[str, Any] = {}
    install(SimpleNamespace(add=changes.__setitem__), guesses)  # type: ignore[arg-type]
    changes["deepspeed.ops.op_builder.builder"](module)
    return OpBuilder().load(True), said


def test_other_parts_are_compiled() -> None:
    """Nothing is said of them."""
    assert loaded("async_io") == ("compiled async_io True", [])


@needs("deepspeed")
@pytest.mark.parametrize(
    ("name", "file", "called"),
    [
        ("cpu_adam", "adam/cpu_adam.py", r"ds_opt_adam\.(\w+)\("),
        ("cpu_lion", "lion/cpu_lion.py", r"ds_opt_lion\.(\w+)\("),
        ("cpu_adagrad", "adagrad/cpu_adagrad.py", r"ds_opt_adagrad\.(\w+)\("),
        ("fused_adam", "adam/fused_adam.py", r"fused_adam_cuda\.(\w+)"),
        ("fused_lion", "lion/fused_lion.py", r"fused_lion_cuda\.(\w+)"),
    ],
)
def test_all_that_an_optimizer_calls_is_there(name: str, file: str, called: str) -> None:
    """As its own code names it."""
    spec = find_spec("deepspeed")
    assert spec is not None
    assert spec.origin is not None
    code = (Path(spec.origin).parent / "ops" / file).read_text(encoding="utf-8")
    kernels, said = loaded(name)
    assert len(said) == 1
    names = set(re.findall(called, code))
    assert names
    assert all(getattr(kernels, each)(1, two=2) is None for each in names)


@needs("deepspeed")
def test_what_quantises_gives_tensors_of_the_sizes_that_its_kernels_make() -> None:
    """Bytes for 8 bits and half of them for 4, a scale in fp32 for each group, fp16 back.

    Source: deepspeed 0.19.8 ops/csrc/quantization/pt_binding.cpp.
    """
    import torch

    kernels, said = loaded("quantizer")
    assert len(said) == 1

    def of(tensors: Any) -> list[tuple[tuple[int, ...], str]]:
        return [(tuple(each.shape), str(each.dtype).removeprefix("torch.")) for each in tensors]

    gradient = torch.empty(64, 16, dtype=torch.bfloat16)
    flat = gradient.view(-1)
    values, scales = kernels.quantize(flat, 4, 8, kernels.Symmetric)
    assert of((values, scales)) == [((1024,), "int8"), ((4, 1), "float32")]
    assert of([kernels.dequantize(values, scales, 4, 8, kernels.Symmetric)]) == [((1024,), "float16")]
    packed, scales = kernels.swizzle_quant(gradient, 64, 4, kernels.Symmetric, 1, 2, 4)
    assert of((packed, scales)) == [((512,), "int8"), ((64, 1), "float32")]
    part, scales = kernels.quantized_reduction(packed, scales, 64, 16, 4, kernels.Symmetric, 4)
    assert of((part, scales)) == [((128,), "int8"), ((16, 1), "float32")]
    assert of([kernels.dequantize(part, scales, 16, 4, kernels.Symmetric)]) == [((256,), "float16")]
