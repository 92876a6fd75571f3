"""Bounds of a job whose architecture no program describes."""
