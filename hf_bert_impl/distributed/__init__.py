"""Process texts on Ray, in shards and with `datasets`."""

from hf_bert_impl.distributed.batch_tasks import (
    Answer,
    BatchTask,
    Classify,
    EmbedTexts,
    FillMask,
)

__all__ = ["Answer", "BatchTask", "Classify", "EmbedTexts", "FillMask"]
