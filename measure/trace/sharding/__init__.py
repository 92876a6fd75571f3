"""Traces of one rank of a sharded run: the real modules run once,
and the runtime that shards is executed over their events.
"""
