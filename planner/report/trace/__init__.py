"""Documents of ``measure`` that ``plan`` reads, and the trace beside the closed form."""
