"""Readers of models that mix attention with other layers: state spaces, gated deltas, short convolutions."""
