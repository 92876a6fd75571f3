"""Which arguments a Triton kernel writes, read from its source."""

from __future__ import annotations

import ast
import textwrap
from types import SimpleNamespace

import pytest

from tests.extras import needs

pytestmark = needs("torch")


@pytest.mark.parametrize(
    ("body", "written"),
    [
        ("x = tl.load(a_ptr)\ntl.store(b_ptr + 1, x)", {"b_ptr"}),
        ("b_ptr += offset\nout = b_ptr\ntl.store(out, 1.0, mask=n > 0)", {"b_ptr", "offset"}),
        ("tl.atomic_add(a_ptr, 1)", {"a_ptr"}),
        ("block = tl.make_block_ptr(a_ptr)\nblock.store(b_ptr)", {"a_ptr"}),
        ("helper(a_ptr, n)", {"a_ptr", "n"}),
        ("tl.store(pointer=b_ptr, value=a_ptr)", {"b_ptr"}),
    ],
)
def test_arguments_that_reach_a_store_are_written(body: str, written: set[str]) -> None:
    """Through assignments and into functions of the program; what is only loaded or only a value is not."""
    from measure.dry_run.libraries.triton_kernels import written_arguments

    source = f"def kernel(a_ptr, b_ptr, offset, n):\n{textwrap.indent(body, '    ')}\n"
    kernel = SimpleNamespace(parse=lambda: ast.parse(source), arg_names=["a_ptr", "b_ptr", "offset", "n"])
    assert written_arguments(kernel) == written
