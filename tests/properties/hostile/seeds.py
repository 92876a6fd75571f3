"""The sound files that the mutations start from."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hostile.mutations import Node, Raw, Table, to_json, to_toml, to_yaml, tree_of

from planner.allocator.documents.history_file import pack_history
from planner.catalog.location import data_dir
from planner.catalog.models import model_entry
from planner.configs.launchers import accelerate, zero
from planner.configs.shared import trainer_arguments
from planner.configs.shared.key_tables import names_in
from planner.configs.tools import hf_trainer, lmflow, trl
from planner.configs.tools.axolotl import axolotl
from planner.configs.tools.llama_factory import llama_factory, llama_factory_optimizers
from planner.configs.tools.unsloth import unsloth_cli, unsloth_train
from planner.records import COLUMNS, RECORD_SCHEMA_ID
from planner.units import MIB

EXAMPLES = Path(__file__).parents[2] / "planner" / "configs" / "examples"
CONFIGS = tuple(sorted(path.name for path in EXAMPLES.iterdir()))
CAMPAIGNS = ("cpu.toml", "first.toml")
TINY_MODEL = data_dir() / "campaigns" / "tiny" / "config.json"
"""What the first of them names, from its own folder."""
# Each is read by another reader, or by another part of one.
MODELS = (
    "llama-3.1-8b", "qwen2.5-0.5b", "mistral-7b-v0.1", "gemma-2-2b", "gemma-3-1b", "phi-3-mini-4k",
    "mixtral-8x7b",
    "qwen3-30b-a3b",
    "deepseek-v2-lite", "deepseek-v3", "gpt-oss-20b", "gpt2", "gpt-neox-20b", "opt-350m", "bloom-560m",
    "falcon-7b", "mpt-7b",
    "stablelm-3b-4e1t", "glm-4-9b-0414", "internlm2-7b", "baichuan-7b", "chatglm3-6b", "qwen-7b", "phi-2",
    "smollm3-3b",
    "olmo-2-7b",
    "gpt-neo-125m", "starcoderbase-1b", "biogpt", "phi-3.5-moe", "mamba2-130m", "idefics2-8b",
    "helium-1-preview-2b", "cwm-32b", "jais-2-8b", "youtu-llm-2b", "salesforce-codegen-350m",
)  # fmt: skip
_KEY_FILES = ("transformers.toml", "llama-factory.toml", "trl.toml", "lmflow.toml", "axolotl.toml")
CONFIG_KEYS = sorted(
    {
        word
        for module in (
            accelerate,
            axolotl,
            hf_trainer,
            llama_factory,
            llama_factory_optimizers,
            lmflow,
            trainer_arguments,
            trl,
            unsloth_cli,
            unsloth_train,
            zero,
        )
        for value in vars(module).values()
        if isinstance(value, dict | tuple | frozenset)
        for word in value
        if isinstance(word, str)
    }.union(*(names_in(file, "harmless") for file in _KEY_FILES))
)
"""Every word that the readers of other tools' files know as a key."""
_WRITERS = {".json": to_json, ".toml": to_toml}


def written(tree: Node, suffix: str) -> str:
    """A tree in the format of a suffix, YAML where there is none."""
    return _WRITERS.get(suffix, to_yaml)(tree)


@cache
def config(name: str) -> Node:
    """One of the example configs."""
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    return tree_of(tomllib.loads(text) if name.endswith(".toml") else yaml.safe_load(text))


@cache
def campaign(name: str) -> Node:
    """The beginning of a campaign that ships."""
    table = tomllib.loads((data_dir() / "campaigns" / name).read_text(encoding="utf-8"))
    return tree_of({key: value[:2] if isinstance(value, list) else value for key, value in table.items()})


@cache
def model(name: str) -> Node:
    """The ``config.json`` of a catalog model."""
    return tree_of(dict(model_entry(name).config))


@cache
def calibration() -> Node:
    """The calibration that ships."""
    return tree_of(json.loads((data_dir() / "calibration" / "default.json").read_text(encoding="utf-8")))


@cache
def rows() -> tuple[dict[str, str], ...]:
    """A few published rows: columns and cells."""
    found = []
    for name in ("torchtune_readme.csv", "unsloth_readme.csv"):
        with (data_dir() / "published" / name).open(encoding="utf-8", newline="") as stream:
            found += [{**row, "notes": ""} for row in list(csv.DictReader(stream))[:3]]
    return tuple(found)


@cache
def record_lines() -> Node:
    """The same rows as lines of JSON, the first with all that a measured record carries."""
    numbers = {"nodes", "gpus_per_node", "lora_rank", "micro_batch", "grad_accum", "seq_len"}
    lines: list[dict[str, Any]] = []
    for row in rows():
        values: dict[str, Any] = {
            name: int(cell) if name in numbers else cell for name, cell in row.items() if cell
        }
        if "lora_targets" in values:
            values["lora_targets"] = values["lora_targets"].split(";")
        for name in ("peak_memory_mib", "tokens_per_s", "run_time_s", "lora_dropout"):
            if name in values:
                values[name] = float(values[name])
        for name in ("double_quant", "gradient_checkpointing", "censored"):
            if name in values:
                values[name] = values[name] == "true"
        lines.append({"schema": RECORD_SCHEMA_ID} | values)
    ranks = [{"rank": 0, "phases": {"forward": {"allocated_bytes": MIB, "reserved_bytes": 2 * MIB}}}]
    lines[0] |= {
        "raw": {
            "case_key": "c",
            "environment_key": "e",
            "said": {"model": "7b"},
            "options": {},
            "workload": "loop",
            "ranks": ranks,
        },
        "environment": {
            "machine": "m",
            "os": "Linux 6",
            "python": "3.11.2",
            "cpu": "x",
            "host_memory_bytes": 1,
        },
        "quality": {"verdict": "doubtful", "reasons": ["too few steps"]},
    }
    return tree_of(lines)


def csv_text(table: list[dict[str, str]] | list[list[str]]) -> str:
    """Cells as CSV."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(table)
    return out.getvalue()


def csv_tree() -> Node:
    """Header and rows as lists of cells."""
    return [list(COLUMNS), *([row.get(name, "") for name in COLUMNS] for row in rows())]


@cache
def history_lines() -> Node:
    """A recorded history: the header, then an entry a line."""
    actions = (
        ("segment_alloc", 4096, 20 * MIB),
        ("alloc", 4096, 5 * MIB),
        ("alloc", 4096 + 5 * MIB, MIB),
        ("free_requested", 4096, 5 * MIB),
    )
    late = (
        ("free_completed", 4096, 5 * MIB),
        ("alloc", 4096, 2 * MIB),
        ("oom", 0, 0),
        ("segment_free", 4096, 20 * MIB),
    )
    entries = [
        {"action": action, "addr": address, "size": n_bytes, "stream": 0, "time_us": 10 * index}
        for index, (action, address, n_bytes) in enumerate(actions + late)
    ]
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:64"}
    snapshot = {"device_traces": [entries], "allocator_settings": settings}
    text = gzip.decompress(
        pack_history(snapshot, 0, [(5, "load"), (20, "forward"), (40, "backward")])
    ).decode()
    return [tree_of(json.loads(line)) for line in text.splitlines()]


def json_lines(tree: Node) -> str:
    """A list as JSON lines; what is no list any more is one line."""
    lines = tree if isinstance(tree, list) and not isinstance(tree, Table) else [tree]
    return "".join(f"{Raw(to_json(line))}\n" for line in lines)
