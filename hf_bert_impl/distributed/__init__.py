"""Process many texts: jobs that resume, and callables for Ray Data, `datasets` and Python."""

from hf_bert_impl.distributed.batch_tasks import Answer, BatchTask, Classify, EmbedTexts

__all__ = ["Answer", "BatchTask", "Classify", "EmbedTexts"]
