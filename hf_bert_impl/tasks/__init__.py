"""Tasks: reading, scoring and drawing classes, tags, answers, masked words and sentence vectors.

This file imports no module: the command line takes options from this folder without torch.
"""
