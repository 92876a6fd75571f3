"""Every formula says where it comes from."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from planner.catalog.stacks import stack_ids

ROOT = Path(__file__).resolve().parents[2]

# Public functions of the formula packages that state no physics of their own, with what they do instead.
NO_FORMULA = {
    "memory/memory_details.py:with_details": "writes text",
    "memory/bounds.py:plain_decoder": "describes a model",
    "memory/bounds.py:rest_of": "replays",
    "memory/drawn_lengths.py:longest_of_batch_tokens": "reads a law that states its source",
    "memory/drawn_lengths.py:micro_steps": "divides samples by processes",
    "memory/replayed_peak.py:ends_expandable": "replays",
    "memory/replayed_peak.py:failed_request": "replays",
    "memory/host.py:predict_host": "adds up the terms of this file",
    "memory/liveness.py:phase_bytes": "adds up requests of the step program",
    "memory/liveness.py:state_bytes": "adds up requests of the step program",
    "memory/outside.py:driver_terms": "lists the terms of other files",
    "memory/over_time.py:timeline_of": "replays",
    "memory/quick.py:predict_quick": (
        "adds up requests of the step program; how its slack was measured stands beside it"
    ),
    "memory/replayed.py:least_bytes": "replays",
    "memory/replayed.py:replayed": "replays",
    "memory/replayed.py:run_of": "replays",
    "memory/replayed.py:slot_events": "fills sizes in",
    "memory/replayed.py:states_at_end": "adds up",
    "memory/replayed.py:terms_at": "adds up",
    "memory/replayed.py:without_card": "takes out what changes no request",
    "memory/replayed_peak.py:predict_replayed": "adds up the terms of a replay",
    "memory/replayed_peak.py:prediction_of": "adds up the terms of a replay",
    "memory/shares.py:shares_by_phase": "replays",
    "memory/shares.py:with_shares": "writes text",
    "memory/fullest_stage.py:fullest_job": "compares predictions",
    "memory/fullest_stage.py:on_whole_nodes": "says on which machine a job is",
    "memory/fullest_stage.py:stage_words": "writes text",
    "memory/structures.py:alike": "compares jobs",
    "memory/structures.py:asks_room": "asks the step program",
    "memory/structures.py:program_of": "asks the step program",
    "throughput/counted.py:by_structure": "reads the step program",
    "throughput/time_details.py:with_time_details": "writes text",
    "throughput/time_inputs.py:job_of": "gathers what the formulas read",
    "throughput/pipeline_time.py:pass_seconds_of": "adds up",
    "throughput/pipeline_time.py:predict_pipeline": "adds up the terms of the other files",
    "throughput/rates.py:pcie_bytes_per_s": "reads the catalog and the table of PCIe rates with its source",
    "throughput/rates.py:peak_flop_per_s": "reads the catalog, which carries its sources",
    "throughput/rates.py:rates_of": "multiplies catalog rates by coefficients, which carry their sources",
    "throughput/step_time.py:pass_terms": "chooses terms",
    "throughput/step_time.py:predict_time": "adds up the terms of the other files",
    "throughput/terms.py:kernel_seconds": "adds up",
    "throughput/terms.py:passes_aside": "reads the step program",
    "throughput/terms.py:term_of": "names a term",
    "throughput/tokens.py:micro_step": "counts tokens as the padding mode defines them",
}


def _docstrings() -> Iterator[tuple[str, str]]:
    for package in ("memory", "throughput"):
        for path in sorted((ROOT / "planner" / package).glob("*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                    yield f"{package}/{path.name}:{node.name}", ast.get_docstring(node) or ""


def _states_a_source(doc: str) -> bool:
    return re.search(r"\bSources?:\s+\S", doc) is not None


def test_every_formula_states_its_source() -> None:
    """Public functions of memory and throughput have a line ``Source: ...``,
    but for those that hold no formula.
    """
    docs = dict(_docstrings())
    assert len(docs) > 60, "the formulas were not found"
    assert (
        sorted(name for name, doc in docs.items() if not _states_a_source(doc) and name not in NO_FORMULA)
        == []
    )


def test_the_list_of_exceptions_is_current() -> None:
    """A function that states its source, or is gone, leaves the list."""
    docs = dict(_docstrings())
    assert sorted(name for name in NO_FORMULA if name not in docs or _states_a_source(docs[name])) == []


# Where code may name a stack: the default, the stack whose software a measurement runs,
# and those that tools' config files mean.
MAY_NAME_STACKS = {
    "planner/intake/resolve.py",
    "planner/api/precheck.py",  # which library is imported
    "planner/records/template.py",  # an example row
    "planner/searching/common_stacks.py",
    "planner/configs/launchers/launch_lines.py",
    "planner/configs/writing/sharding_keys.py",
    "planner/configs/writing/refusals.py",
    "planner/configs/writing/tools.py",
    "measure/run/cases/case.py",
    "measure/dry_run/tool_jobs.py",  # which tool a file is for
    "planner/configs/read.py",
    "planner/configs/launchers/command_line.py",
    "planner/configs/launchers/script_names.py",  # whose script it is
    "planner/configs/programs/calls.py",  # whose classes a program calls
    "planner/configs/programs/arguments.py",
    *(str(path.relative_to(ROOT)) for path in (ROOT / "planner/configs/tools").rglob("*.py")),
}


def test_what_differs_between_stacks_is_in_their_files() -> None:
    """No formula and no rule asks for a stack by its id: a difference is a switch of the stack files,
    with its source.
    """
    ids = set(stack_ids())
    naming = {
        str(path.relative_to(ROOT))
        for package in ("planner", "measure")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in ids
    }
    assert naming <= MAY_NAME_STACKS
