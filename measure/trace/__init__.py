"""The dry run: a training step of the real modules on fake tensors, recorded allocation by allocation.

``program`` traces a step and ``report`` prints it; the events are replayed by :mod:`planner.allocator`.
"""
