"""One training step as a program of operators over tensors that have a size but no values.

The code of a layer is written like the modelling code of Transformers, PEFT and bitsandbytes.  Running it
once records every allocation and every free, in order; memory, reserved memory and time are read from that
record.
"""
