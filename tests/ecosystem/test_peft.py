"""PEFT: LoRA on query and value, prompt tuning and prefix tuning."""

import pytest
import torch

from hf_bert_impl.model.attention import CACHE
from hf_bert_impl.parity import reference_model

pytestmark = pytest.mark.ecosystem

LABELS = torch.tensor([0, 2, 1])


def classifier(model):
    return model("BertForSequenceClassification", num_labels=3)


def test_lora_trains_saves_and_merges(library, model, batch, tmp_path):
    peft = library("peft")
    ours = classifier(model)
    before = ours(**batch).logits
    settings = peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query", "value"], r=3)
    tuned = peft.get_peft_model(ours, settings).train()
    weights = [weight for weight in tuned.parameters() if weight.requires_grad]
    frozen = {name: p.clone() for name, p in tuned.named_parameters() if not p.requires_grad}
    optimizer = torch.optim.AdamW(weights, lr=1e-2)
    losses = []
    for _ in range(12):
        loss = tuned(**batch, labels=LABELS).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    for name, weight in tuned.named_parameters():
        if name in frozen:
            assert torch.equal(weight, frozen[name]), name
    after = tuned.eval()(**batch).logits
    assert (after - before).abs().max() > 1e-2
    tuned.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(classifier(model), tmp_path).eval()
    torch.testing.assert_close(loaded(**batch).logits, after, atol=1e-6, rtol=0)
    merged = tuned.merge_and_unload()
    assert type(merged) is type(classifier(model))
    torch.testing.assert_close(merged(**batch).logits, after, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["PromptTuningConfig", "PrefixTuningConfig"])
def test_virtual_tokens_as_upstream(library, model, batch, name):
    peft = library("peft")
    ours = classifier(model)
    theirs = reference_model(ours)
    settings = getattr(peft, name)(task_type="SEQ_CLS", num_virtual_tokens=5)
    ours, theirs = (peft.get_peft_model(one, settings).eval() for one in (ours, theirs))
    theirs.load_state_dict(ours.state_dict())
    if name == "PrefixTuningConfig" and CACHE == "cache":
        # PEFT 0.21 looks for `past_key_values`, which transformers 5.24 calls `cache`.
        for one in (ours, theirs):
            with pytest.raises(ValueError, match="does not support past key values"):
                one(**batch, labels=LABELS)
        return
    results = [one(**batch, labels=LABELS) for one in (ours, theirs)]
    for result in results:
        result.loss.backward()
    torch.testing.assert_close(results[0].logits, results[1].logits, atol=2e-5, rtol=0)
    gradients = [
        next(p.grad for n, p in one.named_parameters() if "prompt_encoder" in n)
        for one in (ours, theirs)
    ]
    assert gradients[0].abs().max() > 0
    torch.testing.assert_close(*gradients, atol=2e-5, rtol=0)


def test_adapters_by_text_as_upstream(library, model, batch):
    """PEFT's hooks see (B, S, D). One adapter alone computes no padding."""
    peft = library("peft")
    found = []
    ours = model("BertForTokenClassification", num_labels=3)
    for one in (ours, reference_model(ours)):
        settings = peft.LoraConfig(target_modules=["query", "value"], r=3, init_lora_weights=False)
        tuned = peft.get_peft_model(one, settings, adapter_name="a")
        tuned.add_adapter("b", settings)
        generator = torch.Generator().manual_seed(3)
        for name, weight in sorted(tuned.named_parameters()):
            if "lora_" in name:
                weight.data = torch.randn(weight.shape, generator=generator)
        tuned.eval()
        with torch.no_grad():
            mixed = tuned(**batch, adapter_names=["a", "b", "__base__"]).logits
            found.append((mixed, tuned(**batch).logits))
    base = ours.bert
    assert base._inside.why_padded(base) is None
    attended = batch["attention_mask"].bool()
    for here, there in zip(*found, strict=True):
        torch.testing.assert_close(here[attended], there[attended], atol=2e-5, rtol=0)
