"""The child that runs real steps, and what starts it.  Imports torch."""
