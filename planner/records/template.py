"""An empty file of records for people who measured some runs of their own: the columns that matter,
and two examples.
"""

from __future__ import annotations

import csv
import io
from dataclasses import replace

from planner.domain.run_record import RunRecord
from planner.records.cells import format_cell
from planner.records.parsing import COMMENT
from planner.records.record_schema import REQUIRED_COLUMNS
from planner.words import words

# Beside the required columns: what a run is told apart by, and what was read.
# Any other column of the schema may be added.
_OTHER_COLUMNS = words(
    """
    seq_len micro_batch grad_accum gpus_per_node sharding stack lora_rank gradient_checkpointing
    peak_memory_mib memory_kind step_time_s
    """
)
TEMPLATE_COLUMNS = (*REQUIRED_COLUMNS, *_OTHER_COLUMNS)
_EXAMPLE = RunRecord(
    id="run-1",
    source="my-lab",
    source_group="my-lab",
    model="llama-2-7b",
    gpu="rtx4090",
    method="qlora",
    outcome="ok",
    seq_len=1024,
    micro_batch=1,
    grad_accum=16,
    stack="hf-trainer@5",
    lora_rank=16,
    gradient_checkpointing=True,
    peak_memory_mib=7100.0,
    memory_kind="driver",
    step_time_s=11.0,
)
_NOTES = (
    f"Lines that begin with {COMMENT} are not read.  One line for each run; the two examples show how.",
    f"Needed in each line: {', '.join(REQUIRED_COLUMNS)}, and something that was measured.",
    "Everything else may stay blank: it is then what the stack does by default (plan stacks).",
    "outcome: ok or oom.  peak_memory_mib: highest memory of one GPU in MiB; memory_kind says who read it:",
    "driver (nvidia-smi), board (pynvml), reserved or allocated (torch.cuda.max_memory_*).",
    "step_time_s: one optimizer step.",
    "Further columns: plan schema record.",
)


def template_text() -> str:
    """CSV text: comments, the header, and two examples that are comments too."""
    file = io.StringIO()
    file.writelines(f"{COMMENT} {note}\n" for note in _NOTES)
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(TEMPLATE_COLUMNS)
    for example in (
        _EXAMPLE,
        replace(_EXAMPLE, id="run-2", seq_len=4096, peak_memory_mib=None, memory_kind=None, step_time_s=42.0),
    ):
        file.write(f"{COMMENT} ")
        rows.writerow([format_cell(getattr(example, name)) for name in TEMPLATE_COLUMNS])
    return file.getvalue()
