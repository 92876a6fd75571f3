"""Starts the ranks of a case on this machine by torchrun:
``python -m measure.worker.ranks COUNT FOLDER NODES MEETING``.

Dies with the process that asked for it, and as one of its ranks did that was killed.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from measure.worker.process_guard import die_with_parent


def main(count: str, folder: str, nodes: str, meeting: str) -> None:
    """Run ``count`` workers on the case in ``folder`` and wait for them; one that fails ends the others.

    ``nodes`` machines that give the same ``meeting`` (``host:port/name``) make one job;
    it is empty for one machine.
    """
    die_with_parent()
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    if meeting:
        place, _, name = meeting.partition("/")
        where = [
            f"--nnodes={int(nodes)}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={place}",
            f"--rdzv-id={name}",
        ]
    else:
        # A machine without a network may not be able to look up its own name.
        where = ["--standalone", "--local-addr=127.0.0.1"]
    # torchrun's own files too, which it would leave behind.
    where.append(f"--log-dir={Path(folder) / 'torchrun'}")
    try:
        torchrun([*where, f"--nproc-per-node={int(count)}", "--module", "measure.worker.worker", folder])
    except ChildFailedError as error:
        # torchrun ends with status 1 whatever happened.  It ends the other ranks by SIGTERM,
        # and a rank has no handler for that.
        # Source: torch 2.13 distributed/elastic/multiprocessing/api.py SubprocessContext._poll and _close.
        if any(failure.exitcode == -signal.SIGKILL for failure in error.failures.values()):
            os.kill(os.getpid(), signal.SIGKILL)
        raise


if __name__ == "__main__":
    main(*sys.argv[1:5])
