"""Readers of mixtures of experts."""
