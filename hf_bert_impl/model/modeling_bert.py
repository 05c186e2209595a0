"""BERT: every class under the name, signature and parameter names of transformers.

`modeling_base.py` has the bare model, `modeling_language.py` the pre-training heads,
`modeling_tasks.py` those for fine-tuning. The hub's code loader enters here.
"""

# Older releases of transformers copy only the files that this one names when they load code from a
# folder, so all are named here, needed or not.
from .attention import BertSelfAttention  # noqa: F401
from .attention_functions import eager_attention_forward  # noqa: F401
from .configuration_bert import BertConfig
from .cpu_kernels import choose  # noqa: F401
from .damaged_files import check_model  # noqa: F401
from .dropout import Dropout  # noqa: F401
from .embeddings import BertEmbeddings  # noqa: F401
from .encoder import BertLayer
from .heads import BertPooler  # noqa: F401
from .json_files import explained  # noqa: F401
from .linear import linear  # noqa: F401
from .loading import check_folder  # noqa: F401
from .losses import cross_entropy  # noqa: F401
from .masks import backend_mask  # noqa: F401
from .memory import keep_freed_memory  # noqa: F401
from .modeling_base import BertModel
from .modeling_language import (
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForPreTrainingOutput,
    BertLMHeadModel,
)
from .modeling_pretrained import BertPreTrainedModel
from .modeling_tasks import (
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from .packed import Sequences  # noqa: F401
from .padding import Packing  # noqa: F401
from .prepared import PreparedEncoder  # noqa: F401
from .products import fused  # noqa: F401
from .scoring import spread  # noqa: F401
from .validation import check_inputs  # noqa: F401

__all__ = [
    "BertConfig",
    "BertForMaskedLM",
    "BertForMultipleChoice",
    "BertForNextSentencePrediction",
    "BertForPreTraining",
    "BertForPreTrainingOutput",
    "BertForQuestionAnswering",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertLMHeadModel",
    "BertLayer",
    "BertModel",
    "BertPreTrainedModel",
]
