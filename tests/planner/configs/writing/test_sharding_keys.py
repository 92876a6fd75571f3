"""Keys of sharding and offload, in the config or in the launch file that has the engine."""

from __future__ import annotations

from pathlib import Path

from planner.configs.writing.sharding_keys import Files
from planner.configs.writing.translate import edits_for
from planner.configs.yaml_or_json import Document, read_document
from tests.planner.configs.writing.made import BASES, read_with


def test_offload_goes_where_the_engine_is(tmp_path: Path) -> None:
    """In a table of the config, in a launch file of either engine, and nowhere where no engine runs."""
    both = {"sharding": "zero3", "offload": "optimizer+params"}
    for tool in ("llama-factory", "axolotl", "trl", "transformers", "ms-swift", "deepspeed", "accelerate"):
        said = read_with(tool, both, tmp_path)
        assert said is not None
        assert (said["sharding"], said["offload"]) == ("zero3", "optimizer+params")
        assert read_with(tool, {"offload": "optimizer+params-nvme"}, tmp_path) is None
    assert read_with("accelerate", {"sharding": "fsdp", "offload": "optimizer+params"}, tmp_path) is not None
    assert read_with("trl", {"offload": "optimizer"}, tmp_path) is None
    assert read_with("trl", {"gpu": "a100"}, tmp_path) is None


AXOLOTL_4BIT = "adapter: qlora\nload_in_4bit: true\n"


def test_axolotl_shards_a_4_bit_base_with_a_loader_that_it_allows(tmp_path: Path) -> None:
    """Its FSDP2 refuses to load 4 bits on one rank and hand them out."""
    path = tmp_path / "file.yaml"
    for more, efficient in ((AXOLOTL_4BIT, False), ("adapter: lora\n", True)):
        path.write_text(BASES["axolotl"].replace("adapter: lora\n", more), encoding="utf-8")
        edits = edits_for(Files("axolotl", read_document(path)), {"sharding": "fsdp"})
        assert edits is not None
        assert (
            next(edit.value for edit in edits if edit.key == "fsdp_config")["cpu_ram_efficient_loading"]
            is efficient
        )


def test_a_table_is_printed_as_its_keys(tmp_path: Path) -> None:
    """What is left to the trainer is counted, not listed."""
    document = Document(tmp_path / "a.yaml", {"base_model": "x"})
    edits = edits_for(Files("axolotl", document), {"sharding": "zero2"})
    assert edits is not None
    lines = edits[0].lines
    assert "deepspeed.zero_optimization.stage: 2" in lines
    assert lines[-1].startswith("and ")
