"""Files of LLaMA-Factory, of its versions 0 and 1."""
