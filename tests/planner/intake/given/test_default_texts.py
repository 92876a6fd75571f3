"""What help says of flags that are not given is what a job gets."""

from __future__ import annotations

from planner.intake.given.default_texts import DEFAULT_TEXTS, NEEDED, OF_STACK
from planner.intake.given.fields import REQUEST_FIELDS
from tests.jobs import resolved

# Texts that are no value: the values of a job of LoRA without a 4-bit base, on two cards.
_IN_WORDS = {
    "quantization": "none",
    "double_quant": "false",
    "gpu_memory": "23.52 GiB",
    "gpu_reserved": "0 B",
    "link": "pcie",
    "tokens_per_sample": "1024",
    "sharding": "ddp",
}


def not_given(job: str) -> dict[str, tuple[str, str]]:
    """Value and origin of what ``job`` does not say."""
    return {each.name: (each.value, each.origin) for each in resolved(job).assumptions}


def test_what_is_needed_has_no_default() -> None:
    """It is asked for; and no text is left of a flag that went."""
    needed = {name for name, text in DEFAULT_TEXTS.items() if text.startswith(NEEDED)}
    assert needed == {name for name, field in REQUEST_FIELDS.items() if field.needed_for is not None}
    assert DEFAULT_TEXTS.keys() <= REQUEST_FIELDS.keys()


def test_a_plain_job_gets_what_help_says() -> None:
    """Of the stack where that is said; else the value."""
    found = not_given("--model 8b --method lora --gpu 4090:2 --seq 1024")
    told = {name: text for name, text in DEFAULT_TEXTS.items() if name in found and NEEDED not in text}
    assert len(told) > 25
    for name, text in told.items():
        value, origin = found[name]
        if text == OF_STACK:
            assert origin == "default:hf-trainer@5", name
        elif name != "gpus":
            first = text.partition(";")[0].partition(",")[0]
            assert value == _IN_WORDS.get(name, first), name


def test_a_job_of_its_task_gets_what_help_says() -> None:
    """Of labels and of generated completions."""
    found = not_given("--model 1b --method lora --gpu 4090:2 --seq 1024 --task grpo --generator vllm")
    assert found["batch"][0] in DEFAULT_TEXTS["batch"].split()
    for name in ("generations", "vllm_memory"):
        assert found[name][0] == DEFAULT_TEXTS[name]
    assert found["iterations"][0] == DEFAULT_TEXTS["iterations"].partition(";")[0]
    assert found["stack"][0] in DEFAULT_TEXTS["stack"]
    labels = not_given("--model 8b --method full --gpu 4090 --seq 1024 --task classify")
    assert labels["num_labels"][0] == DEFAULT_TEXTS["num_labels"]
