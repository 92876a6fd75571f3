"""Files of programs that are not read here, told by keys that only their files have."""

from __future__ import annotations

from planner.configs.shared.key_tables import texts_in
from planner.configs.yaml_or_json import Document
from planner.errors import NotModelledError
from planner.words import words

# Program -> its own keys.  One is enough: none is a key of a tool that is read.
_MARKS = {
    program: frozenset(words(names)) for program, names in texts_in("other-tools.toml", "marks").items()
}
BRIDGE = (
    "recipes of Megatron-Bridge are Python, which is not run here, so the model and its degrees are not "
    "known: say all of it by flags, with --stack megatron for ms-swift's way (plan --help)"
)
"""Why what changes such a recipe is refused (NVIDIA-NeMo/Megatron-Bridge 067f987d recipes)."""
_OF_PROGRAM = {
    "ms-swift-megatron": ("Megatron",),
    "llama-factory-mca": ("Megatron",),
    "llama-factory-bridge": ("Megatron", "Megatron-Bridge under LLaMA-Factory"),
}
"""Tool that is read -> programs whose keys it has."""


def refuse_other_tools(document: Document, tool: str | None) -> None:
    """Refuse a file of a program that is not read; ``tool``: the one that is asked for, or told for sure.

    Raises:
        NotModelledError: names the program and the key that tells it.
    """
    for program, marks in _MARKS.items():
        if program in _OF_PROGRAM.get(tool or "", ()):
            continue
        if found := sorted(marks & document.table.keys()):
            raise _refusal(document, program, found[0])
    train, model = document.table.get("train"), document.table.get("model")
    # NVIDIA-NeMo/Megatron-Bridge 067f987d src/megatron/bridge/training/config.py TrainingConfig.
    if isinstance(train, dict) and "train_iters" in train:
        raise NotModelledError(f"{document.path}:train: {BRIDGE}")
    # oumi-ai/oumi src/oumi/core/configs/params/model_params.py.
    if isinstance(model, dict) and "model_name" in model:
        raise _refusal(document, "Oumi", "model.model_name")


def _refusal(document: Document, program: str, key: str) -> NotModelledError:
    advice = "whatever --tool says; say the job by flags"
    if program == "Megatron":
        advice = (
            "but with the command that starts them, which is ms-swift's megatron or USE_MCA=1 "
            "llamafactory-cli; else say the job by flags, with --stack megatron"
        )
    return NotModelledError(
        f"{document.path}:{key}: a key of {program}: such files are not read, {advice} (plan --help)"
    )
