"""The models of torchtitan's flavors, those for trying it out among them, and its mixtures of experts.

Keys: torchtitan e347b1e5e (2026-02-15) config/job_config.py Parallelism; models/{llama3,qwen3,deepseek_v3}/
__init__.py (flavors).
"""

from __future__ import annotations

from planner.catalog.location import data_dir
from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys
from planner.errors import show

STACK = "torchtitan@2025"
_DEGREE = "expert_parallel_degree"
_TENSOR = "expert_tensor_parallel_degree"
_SENDER = "expert_parallel_comm_backend"
EXPERT_DEGREES = dict.fromkeys((_DEGREE, _TENSOR), "an expert-parallel degree")
"""Degrees as refusals name them, where they stand in other tables."""
_PLAIN = ("", "torchtitan")
FLAVORS = {
    "llama3": {size: f"meta-llama/Llama-3.1-{size}" for size in ("8B", "70B", "405B")},
    "llama2": {size: f"meta-llama/Llama-2-{size.lower()}-hf" for size in ("7B", "13B", "70B")},
    "qwen3": {
        size: f"Qwen/Qwen3-{size}"
        for size in ("0.6B", "1.7B", "4B", "8B", "14B", "32B", "30B-A3B", "235B-A22B")
    },
    "deepseek_v3": {
        "16B": "deepseek-ai/DeepSeek-V2-Lite",
        "236B": "deepseek-ai/DeepSeek-V2.5",
        "671B": "deepseek-ai/DeepSeek-V3",
    },
}


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


def debug_shape(keys: Keys, name: str, flavor: str) -> str:
    """The ``config.json`` of a debug flavor, by the age that its keys tell; empty for any other.

    Source: torchtitan 14d422f0c (2024-05) models/llama/__init__.py; ae3d2a9bc (2024-06-17): 8 layers;
    f64cf3c18 (2025-04-15): 6 layers; 028a455c1 (2025-11) models/*/__init__.py; 07c00d9c8 (2025-08-31): 6
    layers of DeepSeek's.  Up to 2025-08-11 the vocabulary is that of test_tiktoken.model, 2,000 words and 256
    of its tokenizer's; later shapes have 2,000 and then 2,048, which is counted.
    Ignored: months in which shape and keys changed one after the other, 2024-06, 2025-03 and 2025-08.
    """
    flavor = flavor.removesuffix("_flex_attn")
    model, training = (keys.section(each) for each in ("model", "training"))
    found = ""
    if (name, flavor) == ("llama3", "debugmodel"):
        layers = 2 if training.holds("fp8_linear") else 8 if training.holds("warmup_steps") else 6
        words = 2048 if model.holds("hf_assets_path") else 2256
        found = f"llama3-debugmodel-{layers}-layers-{words}"
    elif (name, flavor) == ("deepseek_v3", "debugmodel"):
        found = f"deepseek_v3-debugmodel-{3 if training.holds('compile') else 6}-layers"
    elif name == "qwen3" and flavor in ("debugmodel", "debugmodel_moe"):
        found = f"qwen3-{flavor.replace('_', '-')}"
    return str(data_dir() / "torchtitan" / f"{found}.json") if found else ""
