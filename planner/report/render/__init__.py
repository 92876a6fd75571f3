"""Sections -> text for people and markdown: layout, bars, numbers, line breaks."""
