"""Prediction -> text for people, markdown and JSON.  Content is decided once (sections),
each format only draws it.
"""
