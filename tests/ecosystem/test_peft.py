"""PEFT: LoRA on query and value, prompt tuning and prefix tuning."""

import pytest
import torch

from hf_bert_impl.parity import reference_model

pytestmark = pytest.mark.slow

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
