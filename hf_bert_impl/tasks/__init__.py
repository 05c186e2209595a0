"""What a task reads, scores and draws: classes, tags, answers, masked words, sentence vectors.

Nothing is imported here: the command line takes options from this folder, and needs no torch.
"""
