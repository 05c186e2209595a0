"""What a task reads, scores and draws: classes, tags, answers, masked words, sentence vectors.

Nothing is imported here: scoring predictions needs no torch.
"""
