"""The differential matrix: many models and recipes through the closed form and through the trace, and the table of both."""
