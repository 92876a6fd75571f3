"""Measured runs beside their predictions: rows, phases, groups and held-out errors."""
