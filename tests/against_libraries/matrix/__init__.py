"""The differential matrix: many models and recipes through the step program and through the trace,
and the table of both.
"""
