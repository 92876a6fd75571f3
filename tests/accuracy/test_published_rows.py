"""The published rows say what the documents say: nothing mistyped, nothing forgotten, nothing of the wrong shape.

The first half reads the documents again with a parser of its own and is skipped where they are not present; the second half
needs only the CSV files.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

PUBLISHED = Path(__file__).parents[2] / "data" / "published"
DOCUMENTS = Path(__file__).parents[2].parent / "shared" / "seeds"
ROWS_PER_SOURCE = {
    "001_df5137ba138920bd": 32,
    "002_2c959ab425c28846": 83,
    "003_f83f083c0d8bebd6": 32,
    "004_7b2525496fac44af": 10,
}
HEADER = (
    "id,source,source_group,locator,grade,notes,model,gpu,host,link,nodes,gpus_per_node,method,quantization,double_quant,quant_storage,"
    "load_dtype,precision,adapter_dtype,lora_rank,lora_targets,lora_dropout,modules_to_save,optimizer,sharding,offload,tensor_parallel,"
    "pipeline_parallel,context_parallel,gradient_checkpointing,checkpoint_reentrant,attention,loss,micro_batch,grad_accum,seq_len,padding,"
    "tokens_per_sample,stack,versions,outcome,phase_reached,peak_memory_mib,peak_memory_per_rank_mib,memory_kind,memory_scope,censored,"
    "step_time_s,samples_per_s,tokens_per_s,padded_tokens_per_s,n_samples,epochs,run_time_s,host_memory_mib,host_memory_kind,host_memory_scope"
)
# Values a column may hold; "" where it may be blank.
ALLOWED = {
    "grade": {"A", "B", "C"},
    "model": {
        *("baichuan-7b", "baichuan2-7b", "chatglm3-6b", "bloom-2b6-zh", "llama-2-7b", "qwen2.5-14b-instruct"),
        *("qwen-1.8b", "qwen-7b", "qwen-14b", "qwen-72b"),
    },
    "gpu": {"rtx3090", "rtx4090", "a800-80", "h800-sxm", "a100-80-sxm", "vgpu-32gb"},
    "host": {""},
    "link": {"", "nvlink", "pcie", "qpi"},
    "method": {"full", "lora"},
    "quantization": {"none", "int8", "nf4", "gptq-int4"},
    "double_quant": {"", "true", "false"},
    "load_dtype": {"fp32", "bf16", "fp16"},
    "precision": {"bf16", "bf16-mixed", "fp16-mixed"},
    "adapter_dtype": {"", "fp32", "bf16", "fp16"},
    "optimizer": {"", "adamw_torch", "adamw_torch_fused", "paged_adamw_32bit"},
    "sharding": {"none", "ddp", "zero1", "zero2", "zero3"},
    "offload": {"none", "optimizer", "optimizer+params"},
    "gradient_checkpointing": {"true", "false"},
    "attention": {"", "eager", "flash2"},
    "loss": {"", "hf"},
    "padding": {"", "longest", "max_length"},
    "stack": {"hf-trainer@4", "qwen-finetune"},
    "outcome": {"ok", "oom"},
    "phase_reached": {"", "load", "adapters", "optimizer_step"},
    "memory_kind": {"", "allocated", "driver"},
    "memory_scope": {"", "per_gpu", "all_gpus"},
    "censored": {"", "true", "false"},
    "host_memory_kind": {"", "rss_mark", "installed_min"},
    "host_memory_scope": {"", "process", "node"},
}
MEASURED = (
    "peak_memory_mib",
    "peak_memory_per_rank_mib",
    "step_time_s",
    "samples_per_s",
    "tokens_per_s",
    "padded_tokens_per_s",
    "run_time_s",
)
# Choices that do not vary within a document (within its LoRA rows where the columns are about adapters).
CONSTANT = {
    "001_df5137ba138920bd": {
        "gradient_checkpointing": "true",
        "seq_len": "1024",
        "epochs": "1",
        "padding": "longest",
        "nodes": "1",
        "lora_rank": "64",
        "lora_dropout": "0.05",
        "lora_targets": "all-linear",
        "modules_to_save": "",
        "attention": "",
        "precision": "fp16-mixed",
        "memory_kind": "driver",
        "memory_scope": "per_gpu",
        "stack": "hf-trainer@4",
        "switches": "prepares_unquantized=true",
    },
    "002_2c959ab425c28846": {
        "gradient_checkpointing": "true",
        "grad_accum": "8",
        "padding": "max_length",
        "attention": "flash2",
        "offload": "none",
        "lora_rank": "64",
        "lora_dropout": "0.05",
        "lora_targets": "c_attn;c_proj;w1;w2",
        "memory_kind": "driver",
        "stack": "qwen-finetune",
        "gpu": "a100-80-sxm",
        "versions": "torch==2.0;cuda==11.8;flash-attn==2",
    },
    "003_f83f083c0d8bebd6": {
        "gradient_checkpointing": "true",
        "epochs": "1",
        "nodes": "1",
        "gpus_per_node": "1",
        "lora_rank": "",
        "lora_targets": "q_proj;v_proj",
        "gpu": "rtx3090",
        "model": "llama-2-7b",
        "sharding": "none",
        "offload": "none",
        "memory_kind": "driver",
        "memory_scope": "per_gpu",
        "stack": "hf-trainer@4",
        "switches": "kbit_upcast=none",
    },
    "004_7b2525496fac44af": {
        "nodes": "1",
        "lora_rank": "8",
        "lora_dropout": "0.01",
        "load_dtype": "bf16",
        "grad_accum": "1",
        "seq_len": "51",
        "gpu": "vgpu-32gb",
        "model": "qwen2.5-14b-instruct",
        "memory_kind": "allocated",
        "memory_scope": "per_gpu",
        "censored": "false",
        "stack": "hf-trainer@4",
        "versions": "torch==2.1;python==3.10;cuda==11.8",
    },
}
# What CUDA shows of each card in MiB, the low end of what is seen.
VISIBLE_MIB = {"rtx3090": 24084.5, "rtx4090": 24084.5, "a800-80": 80998.4, "h800-sxm": 80998.4, "a100-80-sxm": 80998.4}

Record = dict[str, str]


def read_source(source: str) -> list[Record]:
    """All rows of one CSV file."""
    with (PUBLISHED / f"{source}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def all_rows() -> list[Record]:
    """All rows of all files."""
    return [row for source in ROWS_PER_SOURCE for row in read_source(source)]


# ------------------------------------------------------------------------------------------ reading the documents again


@dataclass(frozen=True)
class TableRow:
    """One data row of a markdown table: number of the table, line in the file, titles of the columns, cells."""

    table: int
    line: int
    titles: tuple[str, ...]
    cells: tuple[str, ...]

    def cell(self, title: str) -> str:
        """The cell under the first title that starts with ``title``, without emphasis marks."""
        index = next(i for i, name in enumerate(self.titles) if name.startswith(title))
        return self.cells[index].replace("*", "").strip()


def document_lines(name: str) -> list[str]:
    """Lines of the document whose file name starts with ``name``; the test is skipped where documents are not present."""
    found = sorted(DOCUMENTS.glob(f"{name}*.txt")) if DOCUMENTS.is_dir() else []
    if not found:
        pytest.skip(f"document {name} is not present under {DOCUMENTS}")
    return found[0].read_text(encoding="utf-8").splitlines()


def table_rows(name: str) -> list[TableRow]:
    """Data rows of all markdown tables of a document, in order."""
    rows: list[TableRow] = []
    numbered = enumerate(document_lines(name), start=1)
    table = 0
    for in_table, block in itertools.groupby(numbered, key=lambda pair: pair[1].lstrip().startswith("|")):
        if not in_table:
            continue
        table += 1
        split = [(line, tuple(cell.strip() for cell in text.strip().strip("|").split("|"))) for line, text in block]
        titles = split[0][1]
        rows += [TableRow(table, line, titles, cells) for line, cells in split[2:]]
    return rows


def lines_named(row: Record) -> set[int]:
    """Lines of its own document that a record's locator names."""
    own = [part for part in row["locator"].split(";") if "document 000" not in part]
    return {int(number) for part in own for number in re.findall(r"\d+", " ".join(re.findall(r"\(lines? ([^)]*)\)", part)))}


def seconds(text: str) -> int:
    """Seconds of ``3:35:20``, ``28:04`` or the misprinted ``18.37``."""
    total = 0
    for part in re.split(r"[:.]", text):
        total = 60 * total + int(part)
    return total


def gigabytes(mib: str) -> float:
    """1e9 bytes in a number of MiB."""
    return float(mib) * 2**20 / 1e9


# (model, gpu, gpus, method, quantisation, batch, samples/s, seconds, memory readings)
Run001 = tuple[str, str, int, str, str, int, str, int, tuple[float, ...]]


def expected_runs_001(row: TableRow) -> list[Run001]:
    """What a table row of documents 000 and 001 says: one run, or two where the cells hold two."""
    gpu_name = row.cell("GPU").split("(")[0]
    gpu = {"3090": "rtx3090", "4090": "rtx4090", "A800": "a800-80", "H800": "h800-sxm"}[gpu_name]
    method = row.cell("训练方式")
    if "Zero3-offload" in method:
        kind = ("full", "none")
    elif method.startswith("qlora"):
        kind = ("lora", "nf4")
    else:
        kind = ("lora", "none" if "fp16" in method else "int8")
    count = int(row.cell("卡数"))
    what = (row.cell("模型").replace("bloom-2b6", "bloom-2b6-zh"), gpu, count, *kind, int(row.cell("batch size")))
    if row.cell("显存占用") == "OOM":
        return [(*what, "", 0, ())]
    memory = [float(number) for number in re.findall(r"\d{4,5}(?:\.\d{4})?", row.cell("显存占用"))]
    rates = re.findall(r"\d\.\d{1,3}", row.cell("每秒处理样本"))
    times = [seconds(text) for text in re.findall(r"\d+:\d\d:\d\d|\d\d[:.]\d\d", row.cell("训练时长"))]
    assert len(rates) == len(times)
    assert len(memory) == len(times) * count
    return [
        (*what, rate, time, tuple(memory[i * count : (i + 1) * count]))
        for i, (rate, time) in enumerate(zip(rates, times, strict=True))
    ]


def recorded_run_001(row: Record) -> Run001:
    """The same tuple out of a record."""
    readings = row["peak_memory_per_rank_mib"] or row["peak_memory_mib"]
    return (
        *(row["model"], row["gpu"], int(row["gpus_per_node"]), row["method"], row["quantization"], int(row["micro_batch"])),
        *(row["samples_per_s"], int(row["run_time_s"] or 0), tuple(float(part) for part in readings.split(";") if part)),
    )


def test_001_every_table_row_is_recorded_at_its_line_and_nothing_else() -> None:
    """Documents' table rows and records agree as sets, both ways, and each record names every line that repeats it."""
    lines: dict[Run001, set[int]] = {}
    for row in table_rows("001"):
        for run in expected_runs_001(row):
            lines.setdefault(run, set()).add(row.line)
    records = {recorded_run_001(row): lines_named(row) for row in read_source("001_df5137ba138920bd")}
    assert records == lines


@pytest.mark.parametrize("source", ROWS_PER_SOURCE)
def test_locators_count_rows_as_the_document_does(source: str) -> None:
    """``table T row R (line L)`` is true of the document: the R-th row with measurements of its T-th table stands on line L."""
    places: dict[int, list[int]] = {}
    for row in table_rows(source[:3]):
        if row.cells[0] != "256":  # the second header line of document 002
            places.setdefault(row.table, []).append(row.line)
    named = [
        (int(table), int(number), int(line))
        for record in read_source(source)
        for part in record["locator"].split("; document 000")[:1]
        for table, number, line in re.findall(r"table (\d+) row (\d+) \(line (\d+)\)", part)
    ]
    assert bool(named) is (source[:3] != "004")
    for table, number, line in named:
        assert places[table][number - 1] == line


def test_001_recipe_is_that_of_the_text() -> None:
    """Length cap, checkpointing, epochs, rank, dropout and the paged optimizer of QLoRA are the values listed in the text."""
    listed = dict(re.findall(r"^-\s+(\w+)[:：]\s*(\S+)$", "\n".join(document_lines("001")), flags=re.MULTILINE))
    for row in read_source("001_df5137ba138920bd"):
        common = (row["seq_len"], row["gradient_checkpointing"], row["epochs"])
        assert common == (listed["max_seq_length"], listed["gradient_checkpointing"], listed["epoch"]), row["id"]
        if row["method"] == "lora":
            assert (row["lora_rank"], row["lora_dropout"]) == (listed["lora_rank"], listed["lora_dropout"]), row["id"]
        # DeepSpeed steps what it offloads with its own Adam.
        assert row["optimizer"] == ("" if row["offload"].startswith("optimizer") else listed["optim"]), row["id"]


def test_000_says_nothing_that_001_does_not() -> None:
    """Every row of document 000 is one of the records of document 001, which names its line."""
    records = {recorded_run_001(row): row["locator"] for row in read_source("001_df5137ba138920bd")}
    for row in table_rows("000"):
        for run in expected_runs_001(row):
            assert f"document 000 table 1 row {row.line - 5} (line {row.line})" in records[run]


def test_001_tokens_per_second_and_dataset_size_are_those_of_the_document() -> None:
    """Every token rate stands on a record that names its line; tokens per sample is the document's total over its samples.

    The total is taken as Baichuan2's: where another tokenizer read the samples, they are longer by its bytes of text per token.
    """
    rates = {
        (row.line, row.cell("每秒处理词元数")) for row in table_rows("001") if any("token/s" in title for title in row.titles)
    }
    rows = read_source("001_df5137ba138920bd")
    assert {(line, row["tokens_per_s"]) for row in rows if row["tokens_per_s"] for line in lines_named(row)} >= rates
    assert len(rates) == sum(bool(row["tokens_per_s"]) for row in rows)
    (samples, tokens) = re.findall(r"(\d+)条训练集，共(\d+)词元", "\n".join(document_lines("001")))[0]
    assert {row["n_samples"] for row in rows} == {samples}
    mean = int(tokens) / int(samples)
    bytes_per_token = {"baichuan2-7b": 4.53, "chatglm3-6b": 4.20, "baichuan-7b": 3.92, "bloom-2b6-zh": 4.28}
    for row in rows:
        assert float(row["tokens_per_sample"]) == pytest.approx(mean * 4.53 / bytes_per_token[row["model"]], rel=1e-4)


def test_001_host_memory_is_that_of_the_4090_server_or_the_stated_minimum_on_offload_rows_only() -> None:
    """ZeRO-3-offload rows have the RAM of the server that is described, or the document's minimum; no other row has any."""
    text = "\n".join(document_lines("001"))
    (minimum, recommended) = re.findall(r"内存至少(\d+)G，推荐(\d+)G", text)[0]
    (card, server) = re.findall(r"服务器配置.*RTX (\d+) 24G \+ (\d+)G内存", text)[0]
    for row in read_source("001_df5137ba138920bd"):
        offload = row["offload"] != "none"
        stated = int(server if row["gpu"] == f"rtx{card}" else minimum) * 1024
        assert row["host_memory_mib"] == (str(stated) if offload else "")
        assert (f"{recommended}G recommended" in row["notes"]) is offload


# (model, method, emb, gptq, sharding is ZeRO-3, nodes, gpus per node, length, G printed, s/it printed)
Cell002 = tuple[str, str, bool, bool, int, int, int, str, float]


def expected_cells_002() -> dict[Cell002, tuple[int, int]]:
    """Every measured cell of the table of document 002, with its line and column."""
    sizes = {"1.8B", "7B", "14B", "72B"}
    first, *rest = table_rows("002")
    lengths = [int(cell) for cell in first.cells if cell]
    found: dict[Cell002, tuple[int, int]] = {}
    size = ""
    for row in rest:
        cells = list(row.cells)
        if cells[0] in sizes:
            size = cells.pop(0)
        method, nodes, gpus, *values = cells
        for length, value in zip(lengths, values, strict=False):
            match = re.fullmatch(r"([\d.]+)G? / ([\d.]+)s/it", value)
            if match is None:
                assert value == "-"
                continue
            kind = "full" if method == "Full-parameter" else "lora"
            what = (f"qwen-{size.lower()}", kind, "(emb)" in method, method == "Q-LoRA", int(nodes), int(gpus), length)
            found[(*what, match[2], float(match[1]))] = (row.line, length)
    return found


def test_002_every_cell_is_recorded_at_its_line_and_column_and_nothing_else() -> None:
    """The table's cells and the records agree as sets, both ways; memory in G comes back from MiB to the printed digit."""
    recorded: dict[Cell002, tuple[int, int]] = {}
    for row in read_source("002_2c959ab425c28846"):
        if row["outcome"] == "oom":
            continue
        what = (row["model"], row["method"], bool(row["modules_to_save"]), row["quantization"] == "gptq-int4")
        printed = (int(row["nodes"]), int(row["gpus_per_node"]), int(row["seq_len"]), row["step_time_s"])
        (line,) = lines_named(row)
        column = int(row["locator"].rsplit("column ", 1)[1])
        recorded[(*what, *printed, round(gigabytes(row["peak_memory_mib"]), 6))] = (line, column)
    assert recorded == expected_cells_002()


def test_002_out_of_memory_rows_are_the_two_of_the_text() -> None:
    """The text names LoRA (emb), and LoRA without ZeRO 3, of the 72B model on four cards; both are recorded as out of memory.

    Neither ran under ZeRO-3: the script of the document raises an error for LoRA (emb) there.
    """
    text = document_lines("002")[14]
    assert "使用 LoRA (emb) 微调和不带 DeepSpeed ZeRO 3 的 LoRA 微调在4个A100-SXM4-80G GPUs 上都会出现OOM" in text
    rows = [row for row in read_source("002_2c959ab425c28846") if row["outcome"] == "oom"]
    assert {(row["modules_to_save"], row["sharding"]) for row in rows} == {("wte;lm_head", "zero2"), ("", "zero2")}
    assert {(row["model"], row["gpu"], row["gpus_per_node"], *lines_named(row)) for row in rows} == {
        ("qwen-72b", "a100-80-sxm", "4", 15)
    }


def test_002_batch_is_that_of_the_text_except_where_the_notes_say_so() -> None:
    """Batch 1 and accumulation 8 everywhere; another batch only with the contradiction spelled out in the notes."""
    assert "batch size为1，gradient accumulation为8" in document_lines("002")[10]
    for row in read_source("002_2c959ab425c28846"):
        assert row["grad_accum"] == "8"
        assert (row["micro_batch"] != "1") is ("against the text, which says 1" in row["notes"])


# (quantisation, batch, accumulation, length, samples, GB printed or OOM, seconds or "")
Cell003 = tuple[str, int, int, int, int, str, str]


def expected_rows_003() -> dict[Cell003, set[int]]:
    """Every row of the four tables of document 003, with its lines; a row printed twice has two."""
    found: dict[Cell003, set[int]] = {}
    for row in table_rows("003"):
        quantization = row.cell("quant") if "quant" in row.titles else {1: "fp16", 2: "int8", 3: "int4"}[row.table]
        printed = row.cell("#samples")
        samples = round(float(printed[:-1]) * 1000) if printed.endswith("k") else int(printed)
        memory = row.cell("GPU memory cost")
        time = row.cells[row.titles.index("cost time")]
        hours = re.fullmatch(r"(\d+)h(\d+)min", time)
        run_time = str(int(hours[1]) * 3600 + int(hours[2]) * 60) if hours else time.removesuffix("s").removesuffix("-")
        shape = (int(row.cell("batch size")), int(row.cell("accumulation")), int(row.cell("max seq length")), samples)
        found.setdefault((quantization, *shape, memory.removesuffix("GB"), run_time), set()).add(row.line)
    return found


def test_003_every_table_row_is_recorded_at_its_lines_and_nothing_else() -> None:
    """The tables' rows and the records agree as sets, both ways; a row repeated between tables is one record with two lines."""
    printed = expected_rows_003()
    by_value = {
        (*key[:5], float(key[5]) if key[5] != "OOM" else None, float(key[6] or 0)): lines for key, lines in printed.items()
    }
    recorded = {}
    for row in read_source("003_f83f083c0d8bebd6"):
        quantization = {"none": "fp16", "int8": "int8", "nf4": "int4"}[row["quantization"]]
        shape = (int(row["micro_batch"]), int(row["grad_accum"]), int(row["seq_len"]), int(row["n_samples"]))
        memory = round(gigabytes(row["peak_memory_mib"]), 6) if row["outcome"] == "ok" else None
        recorded[(quantization, *shape, memory, float(row["run_time_s"] or 0))] = lines_named(row)
    assert recorded == by_value
    assert sum(len(lines) for lines in recorded.values()) == 34


def test_003_printed_time_per_sample_is_run_time_over_samples() -> None:
    """Every printed time per sample is quoted in its record's notes and equals run time over samples to the last digit."""
    records = {line: row for row in read_source("003_f83f083c0d8bebd6") for line in lines_named(row)}
    checked = 0
    for row in table_rows("003"):
        printed = row.cell("cost time per sample").removesuffix("s")
        record = records[row.line]
        assert ("printed time per sample" in record["notes"]) is printed.startswith(("0.", "1."))
        if printed.startswith(("0.", "1.")):
            assert f"printed time per sample {printed} s" in record["notes"]
            assert float(record["run_time_s"]) / float(record["n_samples"]) == pytest.approx(float(printed), abs=1.01e-4)
            checked += 1
    assert checked == 22


def test_004_run_times_and_process_memory_are_those_of_the_table() -> None:
    """Per stage: run time in seconds and the larger memory mark as host memory; the smaller one as that of the steps."""
    rows = {row.cells[0]: row for row in table_rows("004")}
    records = {row["id"][-1]: row for row in read_source("004_7b2525496fac44af") if row["id"][:-1] == "004-t1-stage"}
    steps = {row["id"][-7]: row for row in read_source("004_7b2525496fac44af") if row["id"].endswith("-steps")}
    titles = rows["耗时"].titles
    stages = {title[5]: index for index, title in enumerate(titles) if title.startswith("stage")}
    assert set(records) == set(steps) == set(stages)
    for stage, index in stages.items():
        record = records[stage]
        minutes, rest = re.fullmatch(r"(\d+)分钟(?:(\d+)秒)?", rows["耗时"].cells[index]).groups(default="0")  # type: ignore[union-attr]
        assert record["run_time_s"] == str(int(minutes) * 60 + int(rest))
        marks = re.findall(r"\(MB\) ([\d.]+)", rows["内存消耗"].cells[index])
        assert record["host_memory_mib"] == max(marks, key=float)
        assert (steps[stage]["host_memory_mib"], steps[stage]["run_time_s"]) == (min(marks, key=float), "")
        assert lines_named(record) == {rows["耗时"].line, rows["内存消耗"].line}
        assert lines_named(steps[stage]) == {rows["内存消耗"].line}
        same = {name: value for name, value in record.items() if steps[stage][name] == value}
        assert set(record) - set(same) == {"id", "locator", "notes", "phase_reached", "run_time_s", "host_memory_mib"}


def test_004_load_peaks_are_those_of_the_text() -> None:
    """Both load peaks of the performance reports are recorded, at their lines, and nothing else holds GPU memory."""
    printed = {
        line: match[1]
        for line, text in enumerate(document_lines("004"), start=1)
        if (match := re.search(r"加载模型峰值GPU内存：([\d.]+) MB", text))
    }
    recorded = {
        line: row["peak_memory_mib"]
        for row in read_source("004_7b2525496fac44af")
        if row["peak_memory_mib"]
        for line in lines_named(row)
    }
    assert len(printed) == 2
    assert recorded == printed


def test_004_recipe_is_that_of_the_script() -> None:
    """Rank, dropout, batch, targets and padded length of the training rows are the constants of the printed script."""
    text = "\n".join(document_lines("004"))
    source, extra, target = re.search(r"max_source_length = (\d+)\+(\d+)\s+max_target_length = (\d+)", text).groups()  # type: ignore[union-attr]
    expected = {
        "lora_rank": re.search(r"lora_rank = (\d+)", text)[1],  # type: ignore[index]
        "lora_dropout": re.search(r"lora_dropout = ([\d.]+)", text)[1],  # type: ignore[index]
        "micro_batch": re.search(r"per_device_train_batch_size=(\d+)", text)[1],  # type: ignore[index]
        "grad_accum": re.search(r"gradient_accumulation_steps=(\d+)", text)[1],  # type: ignore[index]
        "lora_targets": re.search(r'target_modules="([^"]+)"', text)[1].replace(",", ";"),  # type: ignore[index]
        "n_samples": re.search(r"math_train_(\d+)", text)[1],  # type: ignore[index]
        "seq_len": str(int(source) + int(extra) + int(target) + 1),
    }
    stages = [row for row in read_source("004_7b2525496fac44af") if "stage" in row["id"]]
    for row in stages:
        assert {name: row[name] for name in expected} == expected


# ------------------------------------------------------------------------------------------------- shape of the CSV files


@pytest.mark.parametrize("source", ROWS_PER_SOURCE)
def test_header_is_the_record_columns_in_order(source: str) -> None:
    """The first line of every file is exactly the record columns, and every row has that many cells."""
    with (PUBLISHED / f"{source}.csv").open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert [name for name in header if name in HEADER.split(",")] == HEADER.split(",")
    assert {len(row) for row in rows} == {len(header)}


@pytest.mark.parametrize(("source", "count"), ROWS_PER_SOURCE.items())
def test_every_document_has_its_number_of_rows(source: str, count: int) -> None:
    """The number of rows of each document is the one its README section explains; every row belongs to the file it is in."""
    assert [row["source"] for row in read_source(source)] == [source] * count


def test_no_published_table_is_unchecked() -> None:
    """Every document-derived file in the folder (numbered 000 to 004) is one of those checked here."""
    assert {path.stem for path in PUBLISHED.glob("00[0-4]_*.csv")} == set(ROWS_PER_SOURCE)


def test_ids_are_unique() -> None:
    """No identifier appears twice, within or across files, and each starts with the number of its document."""
    rows = all_rows()
    assert [name for name, count in Counter(row["id"] for row in rows).items() if count > 1] == []
    assert all(row["id"].split("-")[0] == row["source"].split("_")[0] for row in rows)


def test_no_two_rows_are_the_same_measurement() -> None:
    """No two rows share configuration and numbers: what a document repeats is kept once."""
    described = {"id", "source", "locator", "grade", "notes"}
    keys = Counter(tuple(value for name, value in row.items() if name not in described) for row in all_rows())
    assert max(keys.values()) == 1


@pytest.mark.parametrize("column", ALLOWED)
def test_columns_hold_allowed_values(column: str) -> None:
    """A column of names holds only known names."""
    assert {row[column] for row in all_rows()} <= ALLOWED[column]


def test_numbers_are_positive_numbers() -> None:
    """Every number parses and is above zero; counts are whole."""
    whole = ("nodes", "gpus_per_node", "lora_rank", "micro_batch", "grad_accum", "seq_len", "n_samples")
    rows = all_rows()
    for row in rows:
        for name in (*MEASURED, "tokens_per_sample", "epochs", "host_memory_mib", "lora_dropout"):
            assert all(float(part) > 0 for part in row[name].split(";") if part), (row["id"], name)
        for name in whole:
            assert row[name] == "" or int(row[name]) > 0, (row["id"], name)
        for name in ("nodes", "gpus_per_node", "micro_batch", "seq_len"):
            assert row[name], (row["id"], name)


def test_every_row_says_where_it_stands_and_what_was_inferred() -> None:
    """Locator and notes are filled, and no two rows share a locator unless the locator is a cell with two runs or a sentence."""
    rows = all_rows()
    assert all(row["locator"] and row["notes"] and row["source_group"] for row in rows)
    shared = {place for place, count in Counter((row["source"], row["locator"]) for row in rows).items() if count > 1}
    assert shared == {
        ("001_df5137ba138920bd", "table 4 row 3 (line 99)"),
        ("002_2c959ab425c28846", "text before the table (line 15)"),
    }


def test_out_of_memory_rows_have_no_measurement_and_others_have_one() -> None:
    """An out-of-memory row carries no memory, time or rate; every other row carries at least one."""
    rows = all_rows()
    for row in rows:
        filled = [name for name in (*MEASURED, "memory_kind", "memory_scope", "censored") if row[name]]
        filled += ["host_memory_mib"] if row["host_memory_kind"] == "rss_mark" else []
        assert (filled == []) is (row["outcome"] == "oom"), (row["id"], filled)
    assert sum(row["outcome"] == "oom" for row in rows) == 5


def test_memory_has_kind_scope_and_verdict_about_the_limit() -> None:
    """Memory comes with its kind, its scope and a word on censoring, and none of the three comes without memory."""
    for row in all_rows():
        device = {bool(row[name]) for name in ("peak_memory_mib", "memory_kind", "memory_scope", "censored")}
        host = {bool(row[name]) for name in ("host_memory_mib", "host_memory_kind", "host_memory_scope")}
        assert (len(device), len(host)) == (1, 1), row["id"]
        if row["memory_scope"] == "all_gpus":
            assert int(row["nodes"]) * int(row["gpus_per_node"]) > 1, row["id"]


def test_peak_is_the_largest_of_the_ranks() -> None:
    """Where ranks are listed there is one reading a GPU, and the peak is the largest."""
    listed = [row for row in all_rows() if row["peak_memory_per_rank_mib"]]
    assert listed
    for row in listed:
        readings = [float(part) for part in row["peak_memory_per_rank_mib"].split(";")]
        assert len(readings) == int(row["nodes"]) * int(row["gpus_per_node"])
        assert float(row["peak_memory_mib"]) == max(readings)
        assert row["memory_scope"] == "per_gpu"


def test_censoring_is_above_93_percent_of_what_cuda_shows() -> None:
    """A row is censored exactly when one GPU holds more than 93 % of the memory CUDA shows of its card."""
    verdicts: Counter[str] = Counter()
    for row in all_rows():
        if row["peak_memory_mib"] and row["gpu"] in VISIBLE_MIB:
            gpus = int(row["nodes"]) * int(row["gpus_per_node"]) if row["memory_scope"] == "all_gpus" else 1
            full = float(row["peak_memory_mib"]) / gpus / VISIBLE_MIB[row["gpu"]]
            assert (row["censored"] == "true") is (full > 0.93), row["id"]
            assert full < 1.02, f"{row['id']} holds more than its card has: wrong unit or scope"
            verdicts[row["censored"]] += 1
    assert set(verdicts) == {"true", "false"}


def test_firefly_accumulates_where_it_trains_adapters() -> None:
    """Document 001: 16 micro-steps under LoRA, as Firefly's file for the model says, one in full fine-tunes."""
    found = {(row["method"], row["grad_accum"]) for row in read_source(next(each for each in CONSTANT if each.startswith("001")))}
    assert found == {("lora", "16"), ("full", "1")}


@pytest.mark.parametrize("source", CONSTANT)
def test_choices_that_a_document_never_varies_do_not_vary(source: str) -> None:
    """What a document fixes for all its runs is the same on all its rows (adapters: LoRA rows; memory: rows with memory)."""
    for row in read_source(source):
        for name, value in CONSTANT[source].items():
            adapter = name.startswith("lora_") or name == "modules_to_save"
            memory = name.startswith("memory_") or name == "censored"
            if (adapter and row["method"] == "full") or (memory and not row["peak_memory_mib"]):
                continue
            assert row[name] == value, (row["id"], name)


def test_ids_follow_locators() -> None:
    """An identifier repeats the first table and row of its locator (and the column, where one line holds many rows)."""
    for row in all_rows():
        number, place, *rest = row["id"].split("-")
        if place == "text":
            assert row["locator"].startswith("text"), row["id"]
            assert rest[0] in {"oom", "load"}, row["id"]
        elif rest[0].startswith("stage"):
            assert row["locator"].startswith(f"table {place[1:]} column {rest[0]}, "), row["id"]
        else:
            assert row["locator"].startswith(f"table {place[1:]} row {int(rest[0][1:].rstrip('ab'))} (line "), row["id"]
            assert (len(rest) == 2) is (number == "002"), row["id"]
            assert number != "002" or (
                rest[1] == f"s{int(row['seq_len']):04d}" and row["locator"].endswith(f"column {row['seq_len']}")
            )


def test_lengths_are_full_except_where_the_notes_say_so() -> None:
    """Real tokens per sample equal the length in 002 and 003; in 003 they are blank at 2048 and on the int8 table."""
    for row in (*read_source("002_2c959ab425c28846"), *read_source("003_f83f083c0d8bebd6")):
        unknown = row["quantization"] == "int8" or (row["source"].startswith("003") and row["seq_len"] == "2048")
        assert row["tokens_per_sample"] == ("" if unknown else row["seq_len"]), row["id"]


def test_adapters_are_saved_whole_only_with_their_embeddings() -> None:
    """Modules trained whole are embedding and head, in the three LoRA (emb) lines of six lengths and the out-of-memory row."""
    saved = Counter(row["modules_to_save"] for row in all_rows())
    assert saved == {"": 157 - 19, "wte;lm_head": 19}


def test_004_runs_use_two_gpus_and_loads_one() -> None:
    """Training ran on both cards with checkpointing; the load peaks are of runs on one card that train nothing."""
    for row in read_source("004_7b2525496fac44af"):
        training = "stage" in row["id"]
        assert row["gpus_per_node"] == ("2" if training else "1"), row["id"]
        assert row["gradient_checkpointing"] == ("true" if training else "false"), row["id"]
        assert (row["phase_reached"] in ("", "optimizer_step")) is training, row["id"]
        assert row["epochs"] == ("1" if training else ""), row["id"]


def test_adapter_and_quantisation_columns_agree_with_the_method() -> None:
    """Full fine-tuning has neither adapters nor a quantised base; only 001's nf4 rows quantise twice."""
    for row in all_rows():
        if row["method"] == "full":
            adapter = [row[name] for name in ("lora_rank", "lora_targets", "lora_dropout", "modules_to_save", "adapter_dtype")]
            assert (adapter, row["quantization"]) == ([""] * 5, "none"), row["id"]
        said = row["quantization"] == "nf4" and row["source"].startswith("001")
        assert row["double_quant"] == ("true" if said else ""), row["id"]


def test_several_gpus_are_always_sharded_or_replicated() -> None:
    """A row on more than one GPU names how they share the work; offload of parameters goes only with ZeRO-3."""
    for row in all_rows():
        if int(row["nodes"]) * int(row["gpus_per_node"]) > 1:
            assert row["sharding"] != "none", row["id"]
        if "params" in row["offload"]:
            assert row["sharding"] == "zero3", row["id"]


def test_001_rate_and_run_time_tell_the_same_story() -> None:
    """Samples per second is samples over run time, within the rounding of both (the run time is cut to whole seconds)."""
    rows = [row for row in read_source("001_df5137ba138920bd") if row["samples_per_s"]]
    assert rows
    for row in rows:
        run_time, samples = float(row["run_time_s"]), float(row["n_samples"])
        assert samples / (run_time + 1) - 6e-4 <= float(row["samples_per_s"]) <= samples / run_time + 6e-4, row["id"]


def test_002_memory_and_time_grow_with_length() -> None:
    """Along a row of the table memory (to 2 %) and step time do not fall as sequences get longer: a misplaced cell would."""
    key = ("model", "method", "modules_to_save", "quantization", "nodes")
    measured = sorted(
        (row for row in read_source("002_2c959ab425c28846") if row["outcome"] == "ok"),
        key=lambda row: ([row[name] for name in key], int(row["seq_len"])),
    )
    for short, long in itertools.pairwise(measured):
        if all(short[name] == long[name] for name in key):
            assert float(long["step_time_s"]) >= float(short["step_time_s"]), long["id"]
            assert float(long["peak_memory_mib"]) >= 0.98 * float(short["peak_memory_mib"]), long["id"]
