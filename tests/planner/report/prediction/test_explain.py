"""Docstrings of formulas, as ``--explain`` shows them."""

from __future__ import annotations

import pytest

from planner.predicting import estimate
from planner.report.prediction.explain import explanations, formula_text
from tests.jobs import resolved


def documented(n_bytes: int) -> int:
    """Bytes of something, stored in ``n_bytes``.

    Formula: the number itself, see :func:`other`.  Source: a book,
    second line.

    More about it.  Ignored: nothing.
    """
    return n_bytes


def test_explain_reads_the_docstring_of_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """Summary, formula and source come from the function that the term names;
    a name that does not exist says nothing.
    """
    import planner.units

    monkeypatch.setattr(planner.units, "documented", documented, raising=False)
    text = formula_text("planner.units:documented")
    assert (text.summary, text.rule, text.ignored, text.source) == (
        "Bytes of something, stored in n_bytes.",
        "the number itself, see other.",
        "nothing.",
        "a book, second line.",
    )
    assert formula_text("planner.memory.outside:context_bytes").rule.startswith("multiprocessors x threads")
    assert formula_text("planner.program.load:load").source.startswith(
        "transformers 5.23 core_model_loading.py"
    )
    assert formula_text("planner.units:no_such_function").summary == ""
    assert formula_text("os:system").summary == ""


JOBS: dict[str, dict[str, object]] = {
    "qlora": {"method": "qlora"},
    "int8": {"method": "lora", "quantization": "int8", "stack": "hf-trainer@4"},
    "gptq": {"method": "qlora", "quantization": "gptq-int4"},
    "natural lengths": {"method": "lora", "tokens_per_sample": 300, "batch": 4},
    "paged": {"method": "full", "optimizer": "paged_adamw_8bit"},
    "zero2": {"method": "full", "sharding": "zero2", "gpus": 4, "offload": "optimizer"},
    "zero3": {"method": "full", "sharding": "zero3", "gpus": 4, "offload": "optimizer+params"},
    "fsdp": {"method": "full", "sharding": "fsdp", "gpus": 4},
    "ddp": {"method": "lora", "sharding": "ddp", "gpus": 2},
}


@pytest.mark.parametrize("flags", JOBS.values(), ids=JOBS)
def test_each_term_has_numbers_and_a_source(flags: dict[str, object]) -> None:
    """Its operators with their sizes, or the numbers of its formula; what is counted;
    and where that comes from.
    """
    scenario = resolved({"model": "qwen2-0.5b", "gpu": "a100-80-sxm", "seq": 1024, **flags})
    made = estimate(scenario, explain=True)
    shown = [each for each in explanations(made) if each.topic != "Step time"]
    assert len(shown) > 8
    for each in shown:
        assert each.detail, each
        assert each.text.summary, each
        assert each.text.source, each
    assert any(each.detail.startswith("coefficient ") for each in shown)
