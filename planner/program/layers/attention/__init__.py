"""Attention from projections to output, by kernel and by how heads lie over GPUs."""
