"""Training scores labelled tokens only, and the last layer computes only what is read."""

import pytest
import torch

from hf_bert_impl.model import cpu_kernels, modeling_bert
from hf_bert_impl.parity.comparison import reference_model
from tests.model.cases import HEADS, masks, random_batch, random_config, random_labels, random_model

NO_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, classifier_dropout=0.0)
MASKED_LM = ("BertForPreTraining", "BertForMaskedLM")


@pytest.mark.parametrize("padding", list(masks()))
@pytest.mark.parametrize("head", [head for head in HEADS if head != "BertModel"])
def test_training_loss_and_gradients_are_upstreams(head, padding):
    config = random_config(4, head, **NO_DROPOUT)
    ours = random_model(head, config).train()
    theirs = reference_model(ours).train()
    batch = random_batch(head, config, masks()[padding])
    labels = random_labels(head, config, batch)
    a, b = ours(**batch, **labels), theirs(**batch, **labels)
    assert torch.allclose(a.loss, b.loss, rtol=1e-5)
    a.loss.backward()
    b.loss.backward()
    gradients = {n: p.grad for n, p in theirs.named_parameters() if p.grad is not None}
    largest = max(gradient.abs().max() for gradient in gradients.values())
    for name, gradient in gradients.items():
        scale = gradient.abs().max().clamp(min=0.05 * largest)
        assert (ours.get_parameter(name).grad - gradient).abs().max() < 2e-5 * scale, name


@pytest.mark.parametrize("padding", ["right", "none"])
@pytest.mark.parametrize("head", MASKED_LM)
def test_logits_are_those_of_the_labelled_tokens(head, padding):
    config = random_config(1, head, **NO_DROPOUT)
    model = random_model(head, config)
    batch = random_batch(head, config, masks()[padding])
    labels = random_labels(head, config, batch)
    key = "prediction_logits" if head == "BertForPreTraining" else "logits"
    with torch.no_grad():
        every = model(**batch, **labels)[key]
        assert every.shape == (5, 13, config.vocab_size)
        model.train()
        some = model(**batch, **labels)[key]
        unlabelled = model(**batch)[key]
        model.config.sparse_prediction = False
        dense = model(**batch, **labels)[key]
    chosen = labels["labels"] != -100
    assert some.shape == (int(chosen.sum()), config.vocab_size)
    assert torch.allclose(some, every[chosen], atol=1e-5)
    assert unlabelled.shape == dense.shape == every.shape
    assert torch.allclose(dense[chosen], every[chosen], atol=1e-5)


@pytest.mark.parametrize("many", [0.0, 1.0])
@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("padding", ["right", "left", "holes", "both"])
@pytest.mark.parametrize("head", MASKED_LM)
def test_scores_of_padding_are_zero_and_all_else_is_equal(
    head, padding, labelled, many, monkeypatch
):
    monkeypatch.setattr(modeling_bert, "MANY_SCORED", many)
    config = random_config(2, head, **NO_DROPOUT)
    model = random_model(head, config)
    batch = random_batch(head, config, masks()[padding])
    labels = random_labels(head, config, batch) if labelled else {}
    scored = batch["attention_mask"] != 0
    if labelled:
        scored = scored | (labels["labels"] != -100)
    key = "prediction_logits" if head == "BertForPreTraining" else "logits"
    seen, handle = rows_through(model, model.cls.predictions.decoder)
    found = model(**batch, **labels)
    handle.remove()
    assert seen == [scored.numel() if many == 0 else int(scored.sum())]
    model.config.padding_free = False
    expected = model(**batch, **labels)
    assert not found[key][~scored].any()
    assert torch.allclose(found[key][scored], expected[key][scored], atol=1e-5)
    assert expected[key][~scored].any() or scored.all()
    if labelled:
        assert torch.allclose(found.loss, expected.loss, rtol=1e-5)
        weight = model.bert.embeddings.word_embeddings.weight
        (ours,) = torch.autograd.grad(found.loss, weight)
        (theirs,) = torch.autograd.grad(expected.loss, weight)
        assert (ours - theirs).abs().max() < 2e-5 * theirs.abs().max()


@pytest.mark.parametrize("head", MASKED_LM)
def test_nothing_attended_or_labelled(head):
    config = random_config(3, head, **NO_DROPOUT)
    model = random_model(head, config)
    batch = random_batch(head, config, torch.zeros(2, 13, dtype=torch.long))
    labels = {"labels": torch.full((2, 13), -100)}
    if head == "BertForPreTraining":
        labels["next_sentence_label"] = torch.tensor([0, 1])
    output = model(**batch, **labels)
    assert output.loss.isfinite()
    assert not output["prediction_logits" if head == "BertForPreTraining" else "logits"].any()


def rows_through(model, module):
    seen = []
    handle = module.register_forward_pre_hook(
        lambda m, args: seen.append(args[0].shape[:-1].numel())
    )
    return seen, handle


@pytest.mark.parametrize("padding", ["right", "left", "none"])
def test_the_last_layer_computes_what_the_head_reads(padding):
    head = "BertForSequenceClassification"
    config = random_config(2, head, num_hidden_layers=3)
    model = random_model(head, config)
    mask = masks()[padding]
    batch = random_batch(head, config, mask)
    layers = model.bert.encoder.layer
    first, _ = rows_through(model, layers[0].intermediate)
    last, _ = rows_through(model, layers[-1].intermediate)
    with torch.no_grad():
        quick = model(**batch).logits
        states = model(**batch, output_hidden_states=True)
    tokens = 5 * 13 if mask is None else int(mask.sum()) + int((mask[:, 0] == 0).sum())
    assert first == [tokens, 5 * 13 if mask is None else tokens]
    assert last == [5, first[1]]
    assert torch.allclose(quick, states.logits, atol=1e-5)


@pytest.mark.parametrize("padding", ["left", "none"])
@pytest.mark.parametrize("head", [head for head in HEADS if head != "BertModel"])
def test_a_hook_on_the_model_sees_padded_states_and_changes_nothing(head, padding):
    config = random_config(2, head)
    model = random_model(head, config)
    batch = random_batch(head, config, masks()[padding])
    batch |= random_labels(head, config, batch)
    seen = []
    with torch.no_grad():
        expected = model(**batch)
        model.bert.register_forward_hook(lambda module, args, output: seen.append(output))
        found = model(**batch)
    assert seen[0].last_hidden_state.shape[1:] == (13, config.hidden_size)
    for key in expected:
        if isinstance(expected[key], torch.Tensor):
            assert torch.allclose(found[key], expected[key], atol=1e-5), key


def test_only_masked_tokens_reach_the_last_feed_forward():
    head = "BertForMaskedLM"
    config = random_config(2, head, num_hidden_layers=2)
    model = random_model(head, config).train()
    batch = random_batch(head, config, masks()["right"])
    labels = random_labels(head, config, batch)
    last, _ = rows_through(model, model.bert.encoder.layer[-1].intermediate)
    model(**batch, **labels)
    assert last == [int((labels["labels"] != -100).sum())]


@pytest.fixture
def by_onednn(monkeypatch):
    """oneDNN's products on any processor and of any size, as `test_plain_linear.py` has them."""
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch comes without oneDNN")
    monkeypatch.setattr(cpu_kernels, "is_faster_here", lambda: True)
    monkeypatch.setattr(cpu_kernels, "MANY_WEIGHTS", 0)


@pytest.mark.parametrize("padding", ["right", "few", "none"])
@pytest.mark.parametrize("case", ["eval", "train", "labels", "dense labels"])
@pytest.mark.parametrize("head", MASKED_LM)
def test_scores_with_gradients_by_onednn(head, case, padding, by_onednn):
    """A caller may write into the scores as well, and the gradient of what is overwritten is 0."""
    config = random_config(2, head, sparse_prediction=case != "dense labels", **NO_DROPOUT)
    model = random_model(head, config).train(case != "eval")
    reference = reference_model(model).train(case != "eval")
    mask = masks()["none" if padding == "none" else "right"]
    if padding == "few":  # below 30 %: padding is scored, then overwritten
        mask = mask.clone()
        mask[1:] = 1
        mask[1, 10:] = 0
    batch = random_batch(head, config, mask)
    labels = random_labels(head, config, batch) if "labels" in case else {}
    key = "prediction_logits" if head == "BertForPreTraining" else "logits"
    found = model(**batch, **labels)
    expected = reference(**batch, **labels)
    if labels:
        assert torch.allclose(found.loss, expected.loss, rtol=1e-5)
    losses = []
    attended = torch.ones(5, 13, dtype=torch.bool) if mask is None else mask.bool()
    for output in (found, expected):
        loss = 0.0 if output.loss is None else output.loss
        if case != "labels":  # there the scores are those of labelled tokens
            logits = output[key]
            logits[..., 0] = -1e9
            loss = loss + logits.softmax(-1)[attended].pow(2).sum()
        losses.append(loss)
    losses[0].backward()
    losses[1].backward()
    for name, parameter in reference.named_parameters():
        if parameter.grad is not None:
            scale = parameter.grad.abs().max().clamp(min=0.05)
            ours = model.get_parameter(name).grad
            assert (ours - parameter.grad).abs().max() < 5e-5 * scale, name


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("module", ["query", "intermediate", "output", "transform", "decoder"])
def test_any_product_can_be_written_into(module, recorded, by_onednn):
    """As a subclass does that adds a residual in place; those of `nn.Linear` can."""
    config = random_config(2, "BertForMaskedLM", **NO_DROPOUT)
    model = random_model("BertForMaskedLM", config)
    layer = model.bert.encoder.layer[0]
    dense = {
        "query": layer.attention.self.query,
        "intermediate": layer.intermediate.dense,
        "output": layer.output.dense,
        "transform": model.cls.predictions.transform.dense,
        "decoder": model.cls.predictions.decoder,
    }[module]
    states = torch.randn(3, 5, dense.in_features, generator=torch.Generator().manual_seed(1))
    bias = torch.randn(dense.out_features, requires_grad=True)
    with torch.set_grad_enabled(recorded):
        product = cpu_kernels.linear(dense, states)
    expected = dense(states) + bias
    product += bias
    assert torch.allclose(product, expected, atol=1e-5)
    (gradient,) = torch.autograd.grad(product.sum(), bias)
    assert torch.equal(gradient, torch.full_like(bias, 15.0))
