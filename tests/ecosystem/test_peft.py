"""PEFT: LoRA, prompt tuning, and adapters by text, as on transformers' model."""

import copy

import pytest
import torch

import hf_bert_impl
from hf_bert_impl.model.masks import CACHE
from hf_bert_impl.parity import reference_model
from tests.model.cases import model_and_batch

pytestmark = pytest.mark.ecosystem


CLASSIFIER = "BertForSequenceClassification"


def test_lora_trains_saves_and_merges(library, tmp_path):
    peft = library("peft")
    model, batch = model_and_batch(CLASSIFIER, labels=True)
    base = copy.deepcopy(model)
    settings = peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query", "value"], r=3)
    tuned = peft.get_peft_model(model, settings).train()
    frozen = {path: p.clone() for path, p in tuned.named_parameters() if not p.requires_grad}
    optimizer = torch.optim.AdamW((w for w in tuned.parameters() if w.requires_grad), lr=3e-2)
    losses = []
    for _ in range(12):
        loss = tuned(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(torch.equal(tuned.get_parameter(path), p) for path, p in frozen.items())
    after = tuned.eval()(**batch).logits
    tuned.save_pretrained(tmp_path / "adapter")
    loaded = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    torch.testing.assert_close(loaded(**batch).logits, after, atol=1e-6, rtol=0)
    hf_bert_impl.optimize(tuned, "bfloat16")
    merged = tuned.merge_and_unload()
    assert type(merged) is type(base)
    merged.save_pretrained(tmp_path / "merged")  # in the dtype before
    again = type(merged).from_pretrained(tmp_path / "merged", dtype="auto").eval()
    assert {weight.dtype for weight in again.parameters()} == {torch.float32}
    torch.testing.assert_close(again(**batch).logits, after, atol=2e-2, rtol=0)


@pytest.mark.parametrize("name", ["PromptTuningConfig", "PrefixTuningConfig"])
def test_virtual_tokens_as_upstream(library, name):
    peft = library("peft")
    ours, batch = model_and_batch(CLASSIFIER, labels=True)
    settings = getattr(peft, name)(task_type="SEQ_CLS", num_virtual_tokens=5)
    pair = [peft.get_peft_model(one, settings).eval() for one in (ours, reference_model(ours))]
    pair[1].load_state_dict(pair[0].state_dict())
    if name == "PrefixTuningConfig" and CACHE == "cache":
        # PEFT 0.21 expects `past_key_values`, which transformers 5.24 calls `cache`.
        for one in pair:
            with pytest.raises(ValueError, match="does not support past key values"):
                one(**batch)
        return
    found = []
    for one in pair:
        result = one(**batch)
        result.loss.backward()
        grads = [p.grad for name, p in one.named_parameters() if "prompt_encoder" in name]
        found.append((result.logits, grads))
    assert found[0][1][0].abs().max() > 0
    torch.testing.assert_close(found[0], found[1], atol=2e-5, rtol=0)


def test_adapters_by_text_as_upstream(library):
    """PEFT's hooks see (B, S, D)."""
    peft = library("peft")
    found = []
    ours, batch = model_and_batch("BertForTokenClassification")
    for one in (ours, reference_model(ours)):
        settings = peft.LoraConfig(target_modules=["query", "value"], r=3, init_lora_weights=False)
        tuned = peft.get_peft_model(one, settings, adapter_name="a")
        tuned.add_adapter("b", settings)
        generator = torch.Generator().manual_seed(3)
        for name, weight in sorted(tuned.named_parameters()):
            if "lora_" in name:
                weight.data = torch.randn(weight.shape, generator=generator)
        with torch.no_grad():
            mixed = tuned.eval()(**batch, adapter_names=["a", "b", "__base__", "b", "a"]).logits
            found.append((mixed, tuned(**batch).logits))
    attended = batch["attention_mask"].bool()
    for here, there in zip(*found, strict=True):
        torch.testing.assert_close(here[attended], there[attended], atol=2e-5, rtol=0)
