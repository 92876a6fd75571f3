"""Command lines with any value of any flag: an answer or a sentence."""

from __future__ import annotations

import tempfile
from typing import Any

from hostile.harness import assert_sound, examples
from hypothesis import example, given
from hypothesis import strategies as st

from planner.intake.given.fields import REQUEST_FIELDS
from planner.intake.given.flags import request_fields
from planner.intake.given.request_field import RequestField

EXTREME = (
    "", " ", "0", "-0", "1", "-1", "2", "0.5", "1e-300", "1e400", "-1e400", "nan", "inf", "NaN", "9" * 400,
    "9" * 5000,
    "2147483648",
    "9223372036854775808", "1_000", "0x10", "4k", "1m", "16m", "²", "٣", "½", "1,2,3", "1,", ",", ";", "a;b",
    "auto", "none",
    "true",
    "7b", "0.5b", "70b", "405b", "4090", "4090:8", "4090:0", "4090:-1", "4090:1025", "a100-80-sxm:1024",
    "cpu", "h100-sxm:8",
    "10TiB",
    "1MiB", "0GiB", "-5GiB", "1e30GiB", "24", "24 GB", "a/b", "a/b/c", "..", "/", "/dev/zero", "~",
    "~nosuchuser",
    "\x1b[31mred\x1b[0m",
    "\x9b31m", "\r", "\n", "\u202eabc", "\udcff", "x" * 5000, "[bold]x[/bold]", "[/]", "{{ x }}", "${x}",
    "%s", "{0}", "-", "--", "--help", "--json", "é", "漢字", "😀",
    "a=b", "a==b", "torch==2.0", "deepspeed==0.16.4", "trl==1.0;peft==9", "zero12_overlap=false", "=",
)  # fmt: skip
OWN: dict[str, tuple[str, ...]] = {
    "--format": ("human", "json", "markdown"),
    "--calibration": ("none", "default"),
    "--confidence": ("0.5", "0.95", "1", "0.999999"),
    "--top": ("1", "100"),
    "--global-batch": ("1", "64", "1000003"),
    "--solve": ("batch", "seq", "gpus"),
}
COMMON, SEARCHING = ("--format", "--calibration"), tuple(OWN)
SWITCHES = {"": ("--json", "--details", "--explain", "--force"), "search": ("--json", "--beyond-context")}


def plausible(field: RequestField) -> st.SearchStrategy[str]:
    """Values that a flag takes, small and large."""
    if field.kind == "choice":
        return st.sampled_from(field.choices)
    if field.kind == "integer":
        low, high = int(field.low or 1), int(field.high or 1)
        return st.sampled_from([low, low + 1, 3, 8, 100, 4096, high - 1, high]).map(
            lambda n: str(min(max(n, low), high))
        )
    if field.kind == "number":
        return st.sampled_from([field.low or 0.0, 1e-9, 0.1, 0.999, 1.5, 100.0, field.high or 1.0]).map(str)
    if field.kind == "size":
        return st.sampled_from(["0MiB", "1MiB", "300MiB", "1GiB", "23.5GiB", "80GB", "16TiB", "1000TiB"])
    return st.sampled_from(
        _NAMES.get(
            field.name, ("all-linear", "attention", "q_proj;v_proj", "lm_head", "embed_tokens;lm_head")
        )
    )


_NAMES = {
    "model": (
        "7b",
        "0.5b",
        "gpt2",
        "llama-3.1-70b",
        "deepseek-v3",
        "gpt-oss-20b",
        "opt-350m",
        "mixtral-8x7b",
        "gemma-3-1b",
        "bloom-176b",
    ),
    "gpu": (
        "4090",
        "a100-80-sxm:8",
        "h100-sxm",
        "v100-32-sxm2:2",
        "cpu",
        "t4",
        "mi300x",
        "gaudi3",
        "ascend-910b:8",
        "a100-unknown",
    ),
    "host": ("server-256g", "unknown"),
    "stack": ("hf-trainer@5", "torchtune-compile", "unsloth", "trl@1", "llm-foundry"),
    "versions": ("deepspeed==0.16.4", "torch==2.4;transformers==4.40"),
    "switches": ("zero12_overlap=false",),
}


@st.composite
def arguments(draw: st.DrawFn, command: str) -> list[str]:
    """Flags of ``plan`` or one of its commands, around a sound job."""
    said: dict[str, Any] = {"model": "7b", "method": "lora", "gpu": "4090", "seq": "1024"}
    for name in draw(st.lists(st.sampled_from(_FLAGS), max_size=6, unique=True)):
        field = REQUEST_FIELDS[name]
        value = (
            st.none()
            if field.kind == "flag"
            else st.one_of(*[plausible(field)] * 4, st.sampled_from(EXTREME))
        )
        said[name] = draw(value)
    words = [command] if command else []
    for name, value in said.items():
        flag = REQUEST_FIELDS[name].flag
        if value is None:
            words.append(draw(st.sampled_from([flag, flag.replace("--", "--no-", 1)])))
        else:
            words += draw(st.sampled_from([[flag, value], [f"{flag}={value}"]]))
    for flag in draw(
        st.lists(st.sampled_from(SEARCHING if command == "search" else COMMON), max_size=2, unique=True)
    ):
        words += [flag, draw(st.one_of(*[st.sampled_from(OWN[flag])] * 3, st.sampled_from(EXTREME)))]
    words += draw(st.lists(st.sampled_from(SWITCHES.get(command, ("--json",))), max_size=2, unique=True))
    return [word.replace("\0", "") for word in words]


_FLAGS = [field.name for field in request_fields()]


# One sample in the whole run: one micro-step that is not even full.
_ONE_SAMPLE = [
    "--model",
    "7b",
    "--method",
    "full",
    "--gpu",
    "4090",
    "--seq",
    "1024",
    "--batch",
    "3",
    "--samples",
    "1",
]


@examples(16)
@example(_ONE_SAMPLE)
@given(arguments(""))
def test_any_flags_of_a_prediction(words: list[str]) -> None:
    """Any values of up to six flags are answered or refused."""
    assert_sound("plan", *words)


@examples(10)
@given(arguments("search"))
def test_any_flags_of_a_search(words: list[str]) -> None:
    """The same for a search."""
    assert_sound("plan", *words)


@examples(20)
@example(["--help", "--json"])
@example(["check", "\udcff", "--json"])
@given(
    st.lists(
        st.sampled_from(
            (*EXTREME, "check", "search", "models", "gpus", "stacks", "rules", "schema", "validate")
        ),
        max_size=4,
    )
)
def test_any_words(words: list[str]) -> None:
    """Words in any order are a command or refused."""
    with tempfile.TemporaryDirectory() as folder:
        assert_sound("plan", *words, *(("--out", folder) if words[:1] == ["calibrate"] else ()))
