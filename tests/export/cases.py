"""Models that are exported: every head, and every kind of model that transformers has not."""

from pathlib import Path
from typing import Any

import torch

from hf_bert_impl.export.exporting import export_model
from hf_bert_impl.export.running import open_file
from hf_bert_impl.model.configuration_bert import CODERTIMO_FIELDS
from tests.model.cases import outputs, random_config, random_model

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "base": ("BertModel", {}),
    "two outputs": ("BertForPreTraining", {}),
    "words": ("BertForMaskedLM", {}),
    "decoder": ("BertLMHeadModel", {}),
    "choices": ("BertForMultipleChoice", {}),
    "answers": ("BertForQuestionAnswering", {}),
    "relative": ("BertForTokenClassification", {"position_embedding_type": "relative_key_query"}),
    "sinusoidal": ("BertModel", {"position_embedding_type": "sinusoidal"}),
    "codertimo": (
        "BertModel",
        {**CODERTIMO_FIELDS, "intermediate_size": 96, "hidden_size": 24, "num_attention_heads": 3},
    ),
    "pruned": ("BertForQuestionAnswering", {"num_attention_heads": 3, "hidden_size": 24}),
}


def make(case: str) -> Any:
    """A random model of a case, in eval mode."""
    name, fields = CASES[case]
    # Tracing takes as long as there are layers, and a third one is written as the second is.
    fields = {"max_position_embeddings": 33, "num_hidden_layers": 2, **fields}
    config = random_config(5, name, **fields)
    model = random_model(name, config, std=0.1)
    if case == "pruned":
        model.prune_heads({0: [1]})
    return model


def assert_exports(model: Any, folder: Path, kind: str) -> None:
    """Exports a model, and runs the file on sizes that nothing was traced or checked with."""
    exported = export_model(model, folder, kind)
    assert exported.report.passed
    assert len({row.case for row in exported.report.rows}) == 6
    assert exported.class_name == type(model).__name__
    run = open_file(folder, kind, 1)
    shape = (7, 5, 11) if exported.class_name == "BertForMultipleChoice" else (7, 11)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, model.config.vocab_size, shape, generator=generator)
    batch = {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0}
    found, expected = run(batch), outputs(model, batch)
    assert tuple(found) == exported.outputs
    for name, value in found.items():
        assert torch.allclose(value, expected[name], atol=1e-5), name
