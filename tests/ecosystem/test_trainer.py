"""transformers' Trainer, with data of the datasets library: losses as on upstream's model."""

import pytest
import torch
import transformers

import hf_bert_impl

pytestmark = pytest.mark.ecosystem


def test_losses_are_upstreams(library, save_tiny, tmp_path):
    generator = torch.Generator().manual_seed(5)
    lengths = torch.randint(3, 30, (12,), generator=generator).tolist()
    ids = [torch.randint(5, 17, (n,), generator=generator).tolist() for n in lengths]
    data = {"input_ids": ids, "labels": [n % 3 for n in lengths]}
    rows = library("datasets").Dataset.from_dict(data)
    fields = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    folder = save_tiny("BertForSequenceClassification", num_labels=3, **fields)
    tokenizer = hf_bert_impl.BertTokenizer.from_pretrained(folder)
    losses = []
    for package in (hf_bert_impl, transformers):
        arguments = transformers.TrainingArguments(
            str(tmp_path / package.__name__),
            max_steps=5,
            per_device_train_batch_size=4,
            logging_steps=1,
            save_steps=3,
            report_to=[],
            use_cpu=True,
            seed=3,
        )
        trainer = transformers.Trainer(
            model=package.BertForSequenceClassification.from_pretrained(folder),
            args=arguments,
            train_dataset=rows,
            data_collator=transformers.DataCollatorWithPadding(tokenizer),
        )
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    # No code is copied into a checkpoint, and stock transformers loads it.
    checkpoint = tmp_path / "hf_bert_impl/checkpoint-3"
    assert not [*checkpoint.glob("*.py")]
    transformers.BertForSequenceClassification.from_pretrained(checkpoint)
