"""The nouns: frozen values without I/O.  Everything else is a function of these."""
