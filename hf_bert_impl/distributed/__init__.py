"""Process many texts: jobs that resume, and callables for Ray Data, `datasets` and Python."""

from typing import TYPE_CHECKING

from hf_bert_impl.lazy import lazy_names

if TYPE_CHECKING:
    from hf_bert_impl.distributed.batch_tasks import Answer, BatchTask, Classify, EmbedTexts

__all__ = ["Answer", "BatchTask", "Classify", "EmbedTexts"]
# On first use: checking a job's inputs needs no torch.
__getattr__ = lazy_names(__name__, dict.fromkeys(__all__, ".batch_tasks"))
