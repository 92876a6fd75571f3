"""Settings that a tool refuses together, so that no such file is written.

Sources: axolotl 0.19.0 utils/schemas/validation.py:1235-1279 and its check of activation_offloading;
llamafactory 0.9.5 hparams/parser.py:384-385 and model/model_utils/quantization.py:186-188.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from planner.configs.writing.sharding_keys import Files, deepspeed_place

_BNB_8BIT = ("adamw_8bit", "adamw_bnb_8bit")


def refusals(files: Files) -> frozenset[str]:
    """Why the tool would not start with these files, as far as its own checks are known here;
    empty where it would.
    """
    table = files.config.table
    if files.tool == "axolotl":
        return frozenset(_of_axolotl(table))
    return frozenset(_of_llama_factory(files, table)) if files.tool == "llama-factory" else frozenset()


def _of_axolotl(table: Mapping[str, Any]) -> Iterator[str]:
    if table.get("activation_offloading") and not table.get("gradient_checkpointing"):
        yield "activation_offloading without gradient_checkpointing"
    fsdp = table.get("fsdp_config")
    if not isinstance(fsdp, Mapping) or not fsdp:
        return
    version = next(
        (
            found
            for found in (table.get("fsdp_version"), fsdp.get("fsdp_version"), fsdp.get("version"))
            if found
        ),
        1,
    )
    optimizer = str(table.get("optimizer"))
    if str(version) == "2":
        if optimizer in _BNB_8BIT:
            yield "8-bit AdamW under FSDP2"
        if _either(fsdp, "cpu_ram_efficient_loading") and table.get("load_in_4bit"):
            yield "cpu_ram_efficient_loading over 4 bits under FSDP2"
    elif "8bit" in optimizer and _either(fsdp, "offload_params"):
        yield "an 8-bit optimizer under FSDP1 with offload"


def _either(fsdp: Mapping[str, Any], name: str) -> Any:
    """Axolotl takes both spellings of a key."""
    return fsdp.get(name) or fsdp.get(f"fsdp_{name}")


def _of_llama_factory(files: Files, table: Mapping[str, Any]) -> Iterator[str]:
    stage, fsdp = _engines(files)
    if table.get("pure_bf16") and stage == 3:
        yield "pure_bf16 under ZeRO-3"
    if table.get("quantization_bit") == 8 and (stage == 3 or fsdp):
        yield "8 bits under ZeRO-3 or FSDP"


def _engines(files: Files) -> tuple[Any, bool]:
    """ZeRO's stage, 0 without, and whether FSDP runs."""
    launch = {} if files.accelerate is None else files.accelerate.table
    fsdp = bool(files.config.table.get("fsdp")) or str(launch.get("distributed_type")).upper() == "FSDP"
    place = deepspeed_place(files)
    table = launch.get("deepspeed_config") if place is None else place.table.get("zero_optimization")
    table = table if isinstance(table, Mapping) else {}
    return table.get("stage", table.get("zero_stage", 0)), fsdp
