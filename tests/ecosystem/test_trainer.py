"""transformers' Trainer, with data of the datasets library: losses as on upstream's model."""

import pytest
import torch
import transformers

import hf_bert_impl

pytestmark = pytest.mark.ecosystem

ROWS = 12


@pytest.fixture
def rows(library):
    datasets = library("datasets")
    generator = torch.Generator().manual_seed(5)
    lengths = torch.randint(3, 30, (ROWS,), generator=generator).tolist()
    return datasets.Dataset.from_dict(
        {
            "input_ids": [
                torch.randint(5, 17, (n,), generator=generator).tolist() for n in lengths
            ],
            "labels": [n % 3 for n in lengths],
        }
    )


def train(model, tokenizer, rows, folder):
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            str(folder),
            max_steps=5,
            per_device_train_batch_size=4,
            logging_steps=1,
            save_steps=3,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            seed=3,
        ),
        train_dataset=rows,
        data_collator=transformers.DataCollatorWithPadding(tokenizer),
    )
    trainer.train()
    return trainer.state.log_history


def test_losses_are_upstreams(save_tiny, rows, tmp_path):
    fields = {
        "num_labels": 3,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    folder = save_tiny("BertForSequenceClassification", **fields)
    tokenizer = hf_bert_impl.BertTokenizer.from_pretrained(folder)
    histories = []
    for library in (hf_bert_impl, transformers):
        model = library.BertForSequenceClassification.from_pretrained(folder)
        place = tmp_path / library.__name__
        histories.append(train(model, tokenizer, rows, place))
    for ours, theirs in zip(*histories, strict=True):
        if "loss" in theirs:
            assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-4)
    # No code is copied into a checkpoint, and stock transformers loads it.
    checkpoint = tmp_path / "hf_bert_impl/checkpoint-3"
    assert not [*checkpoint.glob("*.py")]
    model = transformers.BertForSequenceClassification.from_pretrained(checkpoint)
    assert type(model).__module__.startswith("transformers.")
