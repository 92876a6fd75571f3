"""The dry run of a program as it is: it believes in a CUDA card, computes nothing,
and every allocation is recorded.
"""
