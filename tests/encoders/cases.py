"""Random stock models of many architectures, and batches for them."""

import copy
import random
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import hf_bert_impl
from hf_bert_impl.encoders.forward import Forward
from hf_bert_impl.encoders.rows import ROWS
from hf_bert_impl.parity import attended_positions
from tests.model.cases import CHOICES, largest, masks, tensors
from tests.model.cases import random_labels as labels_of_bert
from tests.support.checkpoints import WORDS, tokenizer_of

#: Prefixes and endings of class names. The oldest transformers lacks some.
PREFIXES = ("Bert", "Roberta", "XLMRoberta", "Data2VecText", "Electra", "DistilBert", "MPNet")
HEADS = (
    *("Model", "ForMaskedLM", "ForSequenceClassification", "ForMultipleChoice"),
    *("ForTokenClassification", "ForQuestionAnswering", "ForPreTraining"),
)
#: Newer architectures, and their further fields.
NEWER = (
    *("NomicBert", "Gte", "JinaEmbeddingsV3", "ModernBert", "EuroBert", "Ernie"),
    *("RobertaPreLayerNorm", "XLMRobertaXL", "RoCBert"),
)
LAYERS = ["sliding_attention", "full_attention"]
FIELDS: dict[str, dict[str, Any]] = {
    "ModernBert": {"local_attention": 6, "num_hidden_layers": 2, "layer_types": LAYERS},
    "EuroBert": {"num_key_value_heads": 1},
    "RoCBert": {"shape_vocab_size": 50, "pronunciation_vocab_size": 50},
}
ALL = [prefix for prefix in (*PREFIXES, *NEWER) if hasattr(transformers, f"{prefix}Model")]
CLASSES = [
    prefix + head
    for prefix in ALL
    for head in HEADS
    if hasattr(transformers, prefix + head) and (head != "ForPreTraining" or prefix == "Electra")
]


def random_config(name: str, seed: int, **fields: Any) -> Any:
    """A small config of odd sizes by seed, without dropout."""
    rng = random.Random(f"{seed} {name}")
    prefix = max((prefix for prefix in ALL if name.startswith(prefix)), key=len)
    heads = rng.choice([1, 2, 3, 5])
    values: dict[str, Any] = {
        "vocab_size": rng.choice([61, 97, 131]),
        "hidden_size": heads * rng.choice([6, 8, 10, 14]),
        "num_hidden_layers": rng.choice([1, 2, 3]),
        "num_attention_heads": heads,
        "intermediate_size": rng.choice([29, 47, 71]),
        "hidden_act": rng.choice(["gelu", "gelu_new", "relu", "silu"]),
        "max_position_embeddings": rng.choice([19, 33, 140]),
        "type_vocab_size": rng.choice([1, 2, 3]),
        "layer_norm_eps": rng.choice([1e-12, 1e-5]),
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "num_labels": 2 if "Question" in name else rng.choice([2, 3, 5]),
        "pad_token_id": rng.choice([0, 1, 2]) if prefix != "MPNet" else 1,
        # Names of other architectures. A config ignores those that it does not read.
        **{"attention_dropout": 0.0, "embedding_dropout": 0.0, "mlp_dropout": 0.0},
        **{"classifier_dropout": 0.0, "dropout": 0.0, "qa_dropout": 0.0},
        **{"seq_classif_dropout": 0.0, "summary_first_dropout": 0.0, "summary_last_dropout": 0.0},
        **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 3),
        **{"mask_token_id": 4, "norm_eps": 1e-5},
    }
    values |= FIELDS.get(prefix, {})
    if prefix == "Electra":
        values["embedding_size"] = rng.choice([values["hidden_size"], 11])
    if prefix == "DistilBert":
        values["hidden_dim"] = values.pop("intermediate_size")
        values["activation"] = values.pop("hidden_act")
    return getattr(transformers, f"{prefix}Config")(**(values | fields))


def random_stock(name: str, seed: int = 0, backend: str = "eager", **fields: Any) -> Any:
    """A stock model with random parameters, in eval mode."""
    torch.manual_seed(seed)
    config = random_config(name, seed, **fields)
    config._attn_implementation = "eager" if name.startswith("MPNet") else backend
    model = getattr(transformers, name)(config)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            parameter.normal_(std=0.15)
            if "norm" in path.lower().split(".")[-2] and path.endswith("weight"):
                parameter.add_(1)
    return model.eval()


def pair(name: str, seed: int = 0, **options: Any) -> tuple[Any, Any]:
    """A model given to `optimize`, in float32, and stock's own with the same weights."""
    stock = random_stock(name, seed, **options)
    return hf_bert_impl.optimize(copy.deepcopy(stock), "float32"), stock


def save_family(folder: Path, name: str, **fields: Any) -> Path:
    """Saves a random stock model with BERT's tokenizer of a few words; gives the folder."""
    sizes = {"vocab_size": len(WORDS), "max_position_embeddings": 40}
    sizes |= {"pad_token_id": 0, "type_vocab_size": 2}  # as the tokenizer has them
    random_stock(name, 3, **(sizes | fields)).save_pretrained(folder)
    tokenizer_of().save_pretrained(folder)
    return folder


def random_batch(model: Any, kind: str, seed: int = 0, length: int = 13) -> dict[str, Any]:
    """Ids and a mask of a kind of `masks`; masked-out tokens are the pad token."""
    name, config = type(model).__name__, model.config
    generator = torch.Generator().manual_seed(seed)
    mask = masks(5, length, seed)[kind]
    shape = (5, CHOICES, length) if "MultipleChoice" in name else (5, length)
    ids = torch.randint(3, config.vocab_size, shape, generator=generator)
    if mask is None:
        return {"input_ids": ids}
    if len(shape) == 3:
        mask = mask[:, None].repeat(1, CHOICES, 1)
    return {"input_ids": ids.masked_fill(mask == 0, config.pad_token_id), "attention_mask": mask}


def random_labels(model: Any, batch: dict[str, Any]) -> dict[str, Tensor]:
    """The labels of a head, at masked-out tokens too."""
    task = type(model).__name__.partition("For")[2]
    if task == "PreTraining":  # ELECTRA's, which tells replaced tokens
        return {"labels": batch["input_ids"] % 2}
    return labels_of_bert(f"BertFor{task}", model.config, batch)


def assert_close(found: Any, expected: Any, tokens: Tensor, tolerance: float = 2e-5) -> None:
    """Compares all outputs at the attended tokens, and all that are not by token."""
    assert type(found) is type(expected) and list(found) == list(expected)
    named = tensors(found)
    for name, theirs in tensors(expected).items():
        ours = named[name]
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype, name
        if theirs.shape[:2] == tokens.shape:
            ours, theirs = ours[tokens], theirs[tokens]
        assert largest(ours - theirs) < tolerance, name


@torch.no_grad()
def assert_as_stock(model: Any, stock: Any, batch: dict[str, Any], tolerance: float = 2e-5) -> None:
    """Compares what two models give for a batch at its attended tokens."""
    assert_close(model(**batch), stock(**batch), attended_positions(batch), tolerance)


def count_stock_calls(monkeypatch: Any) -> list[str]:
    """The names of bare models that compute padded states from here on."""
    calls: list[str] = []
    stock = Forward.stock

    def counted(self: Forward, *args: Any, **kwargs: Any) -> Any:
        if self.is_bare and ROWS.get() is None:
            calls.append(type(self.model).__name__)
        return stock(self, *args, **kwargs)

    monkeypatch.setattr(Forward, "stock", counted)
    return calls


def layers_of(model: Any) -> nn.ModuleList:
    return next(part for part in model.modules() if type(part) is nn.ModuleList)


def step(model: Any) -> None:
    """Changes all weights in place, as an optimizer does."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
