"""Starts the ranks of a case on this machine by torchrun: ``python -m measure.ranks COUNT FOLDER NODES MEETING``.

Dies with the process that asked for it.
"""

from __future__ import annotations

import sys

from measure.zygote import die_with_parent


def main(count: str, folder: str, nodes: str, meeting: str) -> None:
    """Run ``count`` workers on the case in ``folder`` and wait for them; one that fails ends the others.

    ``nodes`` machines that give the same ``meeting`` (``host:port/name``) make one job; it is empty for one machine.
    """
    die_with_parent()
    from torch.distributed.run import main as torchrun

    if meeting:
        place, _, name = meeting.partition("/")
        where = [f"--nnodes={int(nodes)}", "--rdzv-backend=c10d", f"--rdzv-endpoint={place}", f"--rdzv-id={name}"]
    else:
        # A machine without a network may not be able to look up its own name.
        where = ["--standalone", "--local-addr=127.0.0.1"]
    torchrun([*where, f"--nproc-per-node={int(count)}", "--module", "measure.worker", folder])


if __name__ == "__main__":
    main(*sys.argv[1:5])
