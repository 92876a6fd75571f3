"""Predictions beside measurements: the score, what a fit makes of it, and how sure it is."""
