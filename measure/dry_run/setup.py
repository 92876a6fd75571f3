"""Puts everything in place before the program runs: card, kernels, libraries, stages,
and the walls around it.
"""

from __future__ import annotations

import gc
import sys
import threading
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from measure.dry_run import process_group
from measure.dry_run.cuda import cuda_api
from measure.dry_run.cuda.card import LiveAllocator
from measure.dry_run.cuda.launches import Launches
from measure.dry_run.cuda.native import Native
from measure.dry_run.guesses import Guesses
from measure.dry_run.libraries import (
    bitsandbytes_library,
    cuda_builds,
    cuda_kernels,
    cuda_source,
    deepspeed_kernels,
    expert_rows,
    flash_attention,
    host_optimizers,
    inductor,
    reference_kernels,
    refused,
    stand_ins,
    state_space_kernels,
    trainer_evaluation,
    triton_kernels,
    trl_generation,
    xformers_library,
)
from measure.dry_run.libraries.files import diffusers_files, holes, hub_files, processors, saving
from measure.dry_run.libraries.files.transformers_files import Checkpoints
from measure.dry_run.libraries.importing import OnImport
from measure.dry_run.messages import ProgramJob
from measure.dry_run.sandbox import close_in
from measure.dry_run.stages import Stages
from measure.trace.cuda.sdpa import PRODUCTS, cublas_workspace_bytes
from measure.trace.cuda.softmax import READS_COPIES


@dataclass(frozen=True, slots=True)
class Pretended:
    """What was put in place and is asked again at the end; ``kept`` only has to stay alive."""

    stages: Stages
    guesses: Guesses
    kept: tuple[Any, ...]


def set_up(native: Native, job: ProgramJob) -> Pretended:
    """Everything, in this process and for good."""
    guesses = Guesses()
    native.listen(guesses.guess, lambda why, op: guesses.refuse(why, f"operator {op}"))
    cuda_api.install(native, job.card, LiveAllocator(native, job.allocator), guesses)
    stages = Stages(native, job.n_steps, evaluates=job.evaluates)
    stages.install()
    library = cuda_kernels.install(native, job.card)
    imports = OnImport()
    sys.meta_path.insert(0, imports)
    Checkpoints(guesses).install(imports)
    diffusers_files.install(imports, guesses)
    bitsandbytes_library.install(imports, native, guesses)
    deepspeed_kernels.install(imports, guesses)
    expert_rows.install(imports, guesses)
    flash_attention.install(imports, guesses)
    xformers_library.install(imports, guesses)
    host_optimizers.install(imports, guesses)
    saving.install(imports)
    holes.install()
    hub_files.install(imports, guesses, allowed=job.stands_in, has_rows=bool(job.rows))
    stand_ins.install(imports, guesses, job.rows, allowed=job.stands_in)
    processors.install(imports, guesses, allowed=job.stands_in)
    cuda_builds.install(imports, guesses)
    triton_kernels.install(imports, native, guesses, job.card)
    cuda_source.install(native, guesses)
    state_space_kernels.install(native, guesses)
    reference_kernels.install(guesses)
    inductor.install(imports, native, guesses)
    trl_generation.install(imports, stages, guesses)
    trainer_evaluation.install(imports, stages, guesses)
    process_group.install(guesses)
    Launches(guesses, job.card.n_cards).install(imports)
    refused.install(imports, guesses, trust_remote_code=job.trust_remote_code)
    _list_triton(guesses)
    _see_other_threads(native)
    workspace_bytes = cublas_workspace_bytes(".".join(map(str, job.card.compute_capability)))
    native.begin(workspace_bytes, PRODUCTS, READS_COPIES)
    # Imported libraries hold some million objects, which every collection would look at.
    gc.freeze()
    close_in(Path(job.folder), guesses)
    return Pretended(stages, guesses, (library, imports))


def _list_triton(guesses: Guesses) -> None:
    """Where it is not installed, libraries may take another path than on a card."""
    if find_spec("triton") is None:
        lacking = "not installed; a GPU installation has it, and libraries may run otherwise"
        guesses.assume("triton", lacking, "this environment")


def _see_other_threads(native: Native) -> None:
    """Threads that the program starts are seen as well."""
    # Not `run`, which subclasses replace.
    start: Any = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]  # noqa: SLF001

    def run(thread: threading.Thread) -> None:
        native.see_thread()
        start(thread)

    threading.Thread._bootstrap_inner = run  # type: ignore[attr-defined]  # noqa: SLF001
