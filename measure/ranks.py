"""Starts the ranks of a case by torchrun: ``python -m measure.ranks COUNT FOLDER``.  Dies with the process that asked for it."""

from __future__ import annotations

import sys

from measure.zygote import die_with_parent


def main(count: str, folder: str) -> None:
    """Run ``count`` workers on the case in ``folder`` and wait for them; one that fails ends the others."""
    die_with_parent()
    from torch.distributed.run import main as torchrun

    # A machine without a network may not be able to look up its own name.
    address = "--local-addr=127.0.0.1"
    torchrun(["--standalone", address, f"--nproc-per-node={int(count)}", "--module", "measure.worker", folder])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
