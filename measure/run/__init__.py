"""The parent of real runs: cases, processes, records.  Imports no framework."""
