"""The GPU catalog: what the entries say and which names lead to them."""

from __future__ import annotations

import pytest

from planner.catalog.gpus import NUMBER_KEYS, gpu_entry, gpu_ids, load_gpu
from planner.catalog.index import INDEX_NAME, build_index, format_index
from planner.catalog.location import data_dir
from planner.errors import UnknownNameError, UsageError
from planner.units import GIB, GIGA, MIB, TERA

GPU_DIR = data_dir() / "gpus"

# --- the entries --------------------------------------------------------------------------------------------


def test_catalog_holds_the_cards_that_people_have() -> None:
    """Desktop and laptop GeForce cards of four generations, workstation and data-centre cards,
    and names of other makers.
    """
    geforce = (
        "2080 Ti, 3080-10g, 3080-12g, 4060 laptop, 4070, RTX 4070 SUPER, 4090 laptop, 5060ti-16g, 5070 "
        "Ti, 5090 laptop"
    )
    others = "L20, A4000, RTX 5000 Ada, rtx-pro-4000, DGX Spark, H100 96GB, P100, gb300, cpu"
    ids = {load_gpu(name.strip()).id for name in f"{geforce}, {others}".split(",")}
    assert len(ids) == 19
    assert {load_gpu(name).vendor for name in ("7900 XTX", "mi300x")} == {"amd"}
    assert load_gpu("M3 Max").vendor == "apple"


@pytest.mark.parametrize("gpu_id", gpu_ids())
def test_every_entry_has_a_source_and_an_origin_for_each_number(gpu_id: str) -> None:
    """No number stands without saying where it comes from, and no origin without its number."""
    entry = gpu_entry(gpu_id)
    assert entry.source.strip()
    assert set(entry.origins) == {key for key in NUMBER_KEYS if getattr(entry, key) is not None}


@pytest.mark.parametrize("gpu_id", gpu_ids())
def test_visible_memory_is_below_the_nvidia_smi_total_which_is_below_the_label(gpu_id: str) -> None:
    """The wall a job hits is never above what the driver shows, nor that above what is sold."""
    entry = gpu_entry(gpu_id)
    sizes_mib = [entry.visible_memory_mib, entry.nvidia_smi_total_mib]
    sizes_mib.append(
        None if entry.marketing_memory_gib is None else round(entry.marketing_memory_gib * GIB / MIB)
    )
    known = [size for size in sizes_mib if size is not None]
    assert known == sorted(known)


@pytest.mark.parametrize("gpu_id", gpu_ids())
def test_an_assumed_wall_is_not_above_the_nvidia_smi_total_less_3_percent_unless_taken_from_a_like_card(
    gpu_id: str,
) -> None:
    """Without a reading, visible memory is the total less 3 %, or that of a card with the same memory,
    and says so.

    The total is nvidia-smi's where that is known, else what is sold.
    """
    entry = gpu_entry(gpu_id)
    if entry.visible_memory_mib is None or entry.origins["visible_memory_mib"] != "assumed":
        return
    if "taken from" in entry.source:
        return
    assert entry.marketing_memory_gib is not None
    total_mib = entry.nvidia_smi_total_mib or entry.marketing_memory_gib * 1024
    # Of what CPU and GPU share, the system keeps a part that the label does not show.
    if entry.unified_memory:
        assert entry.visible_memory_mib < int(total_mib * 0.97)
    else:
        assert entry.visible_memory_mib == int(total_mib * 0.97)


@pytest.mark.parametrize("gpu_id", gpu_ids())
def test_only_cuda_devices_have_a_memory_wall(gpu_id: str) -> None:
    """AMD, Intel, Huawei and CPU entries carry no visible memory, so no memory verdict is given on them."""
    spec = load_gpu(gpu_id)
    if not spec.is_cuda:
        assert spec.visible_memory_bytes is None


@pytest.mark.parametrize("gpu_id", gpu_ids())
def test_bf16_is_absent_before_ampere_and_present_from_it(gpu_id: str) -> None:
    """Volta and older cards and Turing have no bf16 matrix units; every later one has,
    also where nobody states the rate.
    """
    spec = load_gpu(gpu_id)
    if spec.vendor != "none":
        assert spec.supports_bf16 is (spec.generation not in {"pascal", "volta", "turing"})


# Blackwell Ultra gave most of its int8 units up; nobody says which chip the rented card has.
OTHER_INT8_UNITS = {"b300", "gb300", "vgpu-32gb"}


@pytest.mark.parametrize("gpu_id", gpu_ids())
def test_rates_are_dense_with_fp32_accumulation(gpu_id: str) -> None:
    """Int8 is twice as fast as bf16, and four times on GeForce, which halves fp32 accumulation.

    A rate for sparse matrices, or for fp16 accumulation, would be off by a factor of two.
    """
    spec = load_gpu(gpu_id)
    if (
        spec.vendor == "nvidia"
        and spec.bf16_flop_per_s
        and spec.int8_op_per_s
        and gpu_id not in OTHER_INT8_UNITS
    ):
        ratio = 4 if "GeForce" in spec.name else 2
        assert spec.int8_op_per_s / spec.bf16_flop_per_s == pytest.approx(ratio, rel=0.04)
        assert spec.fp16_flop_per_s == pytest.approx(spec.bf16_flop_per_s, rel=0.01)


def test_a_loaded_card_is_in_base_units() -> None:
    """Bytes, bytes per second and FLOP per second, with origins under the field names of the type."""
    entry, spec = gpu_entry("h100-sxm"), load_gpu("h100-sxm")
    assert spec.marketing_memory_bytes == (entry.marketing_memory_gib or 0) * GIB
    assert spec.visible_memory_bytes == (entry.visible_memory_mib or 0) * MIB
    assert spec.memory_bandwidth_bytes_per_s == pytest.approx((entry.memory_bandwidth_gb_per_s or 0) * GIGA)
    assert spec.interconnect_bytes_per_s == pytest.approx((entry.interconnect_gb_per_s or 0) * GIGA)
    assert spec.bf16_flop_per_s == pytest.approx((entry.bf16_tflop_per_s or 0) * TERA)
    assert spec.int8_op_per_s == pytest.approx((entry.int8_top_per_s or 0) * TERA)
    assert spec.bf16_flop_per_s > 0
    assert spec.origin_of("bf16_flop_per_s") == entry.origins["bf16_tflop_per_s"]
    assert spec.origin_of("pcie_lanes") == entry.origins["pcie_lanes"]


def test_cards_that_documents_do_not_name_fully_have_no_memory_wall() -> None:
    """An A100 without a size has its rates; a CPU has no number at all."""
    known, unknown, cpu = load_gpu("a100-80-sxm"), load_gpu("a100-unknown"), load_gpu("cpu")
    assert (unknown.marketing_memory_bytes, unknown.visible_memory_bytes) == (None, None)
    assert unknown.bf16_flop_per_s == known.bf16_flop_per_s
    assert not cpu.is_cuda
    assert cpu.origins == ()


# --- names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "gpu_id"),
    [
        ("4090", "rtx4090"),
        ("rtx4090", "rtx4090"),
        ("RTX 4090", "rtx4090"),
        ("rtx_4090", "rtx4090"),
        ("GeForce RTX 4090", "rtx4090"),
        ("NVIDIA GeForce RTX 3090 Ti", "rtx3090ti"),
        ("h100-sxm", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("a100-80g", "a100-80-sxm"),
        ("NVIDIA A100-SXM4-40GB", "a100-40-sxm"),
        ("A800", "a800-80"),
        ("a6000", "rtx-a6000"),
        ("Tesla T4", "t4"),
        ("L40S", "l40s"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("NVIDIA GH200 480GB", "gh200-96"),
    ],
)
def test_a_card_is_found_by_any_usual_spelling(name: str, gpu_id: str) -> None:
    """Case, blanks, hyphens, underscores and the vendor's words around the name do not matter."""
    assert load_gpu(name).id == gpu_id


@pytest.mark.parametrize(
    ("name", "variants"),
    [
        ("A100", ("a100-40-pcie", "a100-80-sxm")),
        ("NVIDIA H100", ("h100-pcie", "h100-sxm")),
        ("v100", ("v100-16-pcie", "v100-32-sxm2")),
        ("h200", ("h200-nvl", "h200-sxm")),
        ("rtx a2000", ("rtx-a2000-12g", "rtx-a2000-6g")),
        ("3080", ("rtx3080-10g", "rtx3080-12g")),
        ("5060 Ti", ("rtx5060ti-8g", "rtx5060ti-16g")),
    ],
)
def test_a_name_that_several_cards_share_is_refused_with_the_list(
    name: str, variants: tuple[str, ...]
) -> None:
    """No card is picked silently where memory or speed would depend on it; the message lists the choices."""
    with pytest.raises(UsageError, match="several cards") as caught:
        load_gpu(name)
    for variant in variants:
        assert variant in str(caught.value)


def test_an_unknown_card_names_the_nearest() -> None:
    """A slip in a name is answered with the ids that look like it."""
    with pytest.raises(UnknownNameError, match=r"unknown GPU 'rtx4091'.*--gpu-memory 8GB") as caught:
        load_gpu("rtx4091")
    assert "rtx4090" in caught.value.nearest
    for size, flag in (("24GB", "24GB"), ("24 gib", "24GiB"), ("80G", "80GB"), ("4091", "8GB")):
        with pytest.raises(UnknownNameError, match=rf"--gpu-memory {flag}"):
            load_gpu(size)


def test_a_size_is_no_misspelt_card() -> None:
    """No card is near to ``8gb``: the list of cards of that size is the way out."""
    with pytest.raises(UnknownNameError, match=r"plan gpus 8GB lists") as caught:
        load_gpu("8gb")
    assert caught.value.nearest == ()


@pytest.mark.parametrize(
    ("name", "near"), [("4065", "rtx4060"), ("rx 7900 xtc", "rx-7900-xtx"), ("4091 laptop", "rtx4090-laptop")]
)
def test_near_spellings_count_and_not_only_ids(name: str, near: str) -> None:
    """What people type has no "rtx" in front; each card is named once."""
    with pytest.raises(UnknownNameError) as caught:
        load_gpu(name)
    assert near in caught.value.nearest
    assert len(set(caught.value.nearest)) == len(caught.value.nearest) <= 3


def test_a_laptop_card_is_not_the_desktop_card_of_its_number() -> None:
    """The 4090 of a laptop has 16 GB and another chip; the driver's whole name finds it."""
    assert load_gpu("NVIDIA GeForce RTX 4090 Laptop GPU") == load_gpu("4090-laptop")
    assert load_gpu("4090 laptop").marketing_memory_bytes == 16 * GIB


@pytest.mark.parametrize("name", ["a100-80-sxm:mig-3g.40gb", "MIG 1g.10gb", "a100-1g.10gb"])
def test_mig_slices_are_refused_with_the_way_to_go_on(name: str) -> None:
    """A slice of a card is no entry; the message says to name the parent card and the memory."""
    with pytest.raises(UsageError, match=r"MIG slices .* not in the catalog: .* --gpu-memory SIZE"):
        load_gpu(name)


@pytest.mark.parametrize("name", ["4090,h100-sxm", "4090, a100-80-sxm:2", "NVIDIA A100-SXM4-80GB, 81920 MiB"])
def test_several_cards_are_for_a_search(name: str) -> None:
    """Commas give choices to ``plan search``; a prediction is for one kind of card."""
    with pytest.raises(UsageError, match="has a comma; plan search compares several"):
        load_gpu(name)


def test_stored_index_agrees_with_the_entries() -> None:
    """``data/gpus/index.json`` is what ``python -m planner.catalog.index`` would write now."""
    assert (GPU_DIR / INDEX_NAME).read_text(encoding="utf-8") == format_index(build_index(GPU_DIR))
