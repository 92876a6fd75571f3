"""Mixtures of experts in a job file of torchtitan, and over how many GPUs it divides them.

Keys: torchtitan e347b1e5e (2026-02-15) config/job_config.py Parallelism; models/qwen3/__init__.py,
models/deepseek_v3/__init__.py (flavors).
"""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys
from planner.errors import show

STACK = "torchtitan@2025"
_DEGREE, _TENSOR, _SENDER = (
    "expert_parallel_degree",
    "expert_tensor_parallel_degree",
    "expert_parallel_comm_backend",
)
EXPERT_DEGREES = dict.fromkeys((_DEGREE, _TENSOR), "an expert-parallel degree")
"""Degrees as refusals name them, where they stand in other tables."""
_PLAIN = ("", "torchtitan")


def read_experts(model: Keys, parallelism: Keys, reading: Reading) -> None:
    """Enter the stack of a mixture, and its degree.

    Raises:
        NotModelledError: a compiled mixture, features of experts over GPUs, or another way to send tokens.
    """
    degree, features = parallelism.count(_DEGREE) or 1, parallelism.count(_TENSOR) or 1
    sender = parallelism.text(_SENDER) or "standard"
    if not _is_mixture(model):
        if degree > 1:
            reading.remark(parallelism.where(_DEGREE), "a model without experts takes no notice of it")
        return
    if (reading.value("stack") or "") not in _PLAIN:
        raise model.not_modelled(
            "flavor", "a mixture of experts that is compiled, or of 2024, is not modelled"
        )
    reading.said.pop("stack", None)
    reading.say("stack", STACK, model.where("flavor"), "a mixture of experts of torchtitan's own")
    if degree == 1:
        return
    if features > 1:
        raise parallelism.not_modelled(
            _TENSOR, "experts whose features are divided over GPUs are not modelled"
        )
    if sender != "standard":
        raise parallelism.not_modelled(
            _SENDER, f"'{show(sender)}' is not modelled; standard is, an all-to-all of NCCL"
        )
    reading.say("expert_parallel", degree, parallelism.where(_DEGREE))


def _is_mixture(model: Keys) -> bool:
    """Whether a flavor has experts: Qwen 3's say so in their names, and all of DeepSeek's do."""
    name, flavor = model.text("name") or "", model.text("flavor") or ""
    return name == "deepseek_v3" or (name == "qwen3" and ("-A" in flavor or flavor == "debugmodel_moe"))
