"""BERT as a decoder: causal mask, cache, generation, cross-attention."""

import inspect

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache, EncoderDecoderModel
from transformers.models.bert import modeling_bert

from hf_bert_impl import BertLMHeadModel, BertModel
from hf_bert_impl.model.attention import CACHE
from hf_bert_impl.parity import reference_model
from tests.model.cases import BACKENDS, random_config, random_model


def decoder(**fields):
    fields = {"num_hidden_layers": 2, "max_position_embeddings": 33} | fields
    return random_model("BertLMHeadModel", random_config(1, "BertLMHeadModel", **fields))


def ids(rows=3, length=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 61, (rows, length), generator=generator)


KINDS = ("absolute", "relative_key", "relative_key_query", "sinusoidal")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_token_sees_no_later_one(backend, kind):
    model = decoder(attn_implementation=backend, position_embedding_type=kind)
    tokens = ids()
    changed = tokens.clone()
    changed[:, 5:] = 1
    with torch.no_grad():
        a, b = model(tokens).logits, model(changed).logits
    assert torch.allclose(a[:, :5], b[:, :5], atol=1e-6)
    assert not torch.allclose(a[:, 5:], b[:, 5:], atol=1e-3)


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_cache_changes_nothing(backend, kind, name):
    model = decoder(attn_implementation=backend, position_embedding_type=kind)
    tokens = ids()
    with torch.no_grad():
        whole = model(tokens, output_attentions=True, output_hidden_states=True)
        first = model(tokens[:, :4], use_cache=True)
        rest = model(tokens[:, 4:], output_attentions=True, **{name: first[CACHE]})
    assert torch.allclose(whole.logits[:, 4:], rest.logits, atol=1e-5)
    for a, b in zip(whole.attentions, rest.attentions, strict=True):
        assert b.shape == (3, a.shape[1], 3, 7)
        assert torch.allclose(a[:, :, 4:], b, atol=1e-5)
    assert rest[CACHE].get_seq_length() == 7


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("beams", [1, 3])
def test_generates_what_upstream_generates(backend, beams):
    ours = decoder(attn_implementation=backend, vocab_size=61)
    theirs = reference_model(ours)
    prompt = ids(2, 5)
    mask = torch.ones_like(prompt)
    mask[1, :2] = 0  # left padding
    options = dict(
        attention_mask=mask, max_new_tokens=9, num_beams=beams, do_sample=False, pad_token_id=0
    )
    tokens = ours.generate(prompt, **options)
    assert tokens.shape[1] > 6
    assert torch.equal(tokens, theirs.generate(prompt, **options))
    assert torch.equal(tokens, ours.generate(prompt, use_cache=False, **options))


@pytest.mark.parametrize("kind", [BertModel, BertLMHeadModel])
def test_the_cache_has_the_name_of_the_installed_release(kind):
    stock = getattr(modeling_bert, kind.__name__)
    shared = inspect.signature(stock.forward).parameters
    ours = inspect.signature(kind.forward).parameters
    assert [name for name in ours if name in shared] == list(shared)
    assert CACHE in shared
    model = decoder()
    past = model(ids(), use_cache=True)[CACHE]
    with pytest.raises(ValueError, match="two names of one argument"):
        model(ids(), cache=past, past_key_values=DynamicCache(config=model.config))


def test_generates_in_an_encoder_decoder_model():
    encoder = random_model("BertModel", random_config(1, "BertModel", vocab_size=61))
    ours = EncoderDecoderModel(
        encoder=encoder, decoder=decoder(add_cross_attention=True, vocab_size=61)
    ).eval()
    theirs = EncoderDecoderModel(
        encoder=reference_model(encoder), decoder=reference_model(ours.decoder)
    ).eval()
    theirs.enc_to_dec_proj = ours.enc_to_dec_proj
    options = dict(max_new_tokens=9, do_sample=False, pad_token_id=0, decoder_start_token_id=1)
    tokens = ours.generate(ids(), eos_token_id=None, **options)
    assert torch.equal(tokens, theirs.generate(ids(), eos_token_id=None, **options))
    assert torch.equal(tokens, ours.generate(ids(), eos_token_id=None, use_cache=False, **options))


def test_generates_with_a_static_cache():
    model = decoder(vocab_size=61)
    prompt = ids(2, 5)
    options = dict(max_new_tokens=6, do_sample=False, pad_token_id=0)
    tokens = model.generate(prompt, **options)
    static = model.generate(prompt, cache_implementation="static", disable_compile=True, **options)
    assert torch.equal(tokens, static)


def test_generation_reports_attentions_and_scores():
    model = decoder(vocab_size=61)
    output = model.generate(
        ids(2, 4),
        max_new_tokens=3,
        do_sample=False,
        pad_token_id=0,
        output_attentions=True,
        output_hidden_states=True,
        return_dict_in_generate=True,
    )
    assert output.attentions[0][0].shape[-2:] == (4, 4)
    assert output.attentions[-1][0].shape[-2:] == (1, 6)


def test_generation_stops_at_the_last_position():
    model = decoder(max_position_embeddings=9)
    with pytest.raises(ValueError, match="max_position_embeddings=9"):
        model.generate(ids(1, 7), max_new_tokens=20, do_sample=False, pad_token_id=0)


def test_logits_to_keep():
    model = decoder()
    tokens = ids()
    with torch.no_grad():
        whole = model(tokens).logits
        assert torch.allclose(model(tokens, logits_to_keep=2).logits, whole[:, -2:], atol=1e-6)
        chosen = torch.tensor([0, 4])
        some = model(tokens, logits_to_keep=chosen).logits
    assert torch.allclose(some, whole[:, chosen], atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("masked", [True, False])
def test_cross_attention_equals_upstream(backend, masked):
    ours = decoder(add_cross_attention=True, attn_implementation=backend, vocab_size=61)
    theirs = reference_model(ours)
    generator = torch.Generator().manual_seed(3)
    states = torch.randn(3, 5, ours.config.hidden_size, generator=generator)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 1, 0]]) if masked else None
    given = dict(encoder_hidden_states=states, encoder_attention_mask=mask)
    tokens = ids()
    with torch.no_grad():
        a = ours(tokens, **given, output_attentions=True)
        b = theirs(tokens, **given)
        assert torch.allclose(a.logits, b.logits, atol=1e-5)
        assert isinstance(a[CACHE], EncoderDecoderCache)
        first = ours(tokens[:, :3], **given, use_cache=True)
        rest = ours(tokens[:, 3:], **given, past_key_values=first[CACHE])
        assert torch.allclose(rest.logits, a.logits[:, 3:], atol=1e-5)
        plain = ours(tokens, **given, past_key_values=DynamicCache(config=ours.config))
        assert torch.allclose(plain.logits, a.logits, atol=1e-5)
    assert a.cross_attentions[0].shape == (3, ours.config.num_attention_heads, 7, 5)
    assert torch.allclose(a.cross_attentions[0].sum(-1), torch.ones(()), atol=1e-5)
    if masked:
        assert not a.cross_attentions[0][1, :, :, 2:].any()


def test_cross_attention_inputs_are_checked():
    model = decoder(add_cross_attention=True)
    width = model.config.hidden_size
    with pytest.raises(ValueError, match="encoder_hidden_states has shape"):
        model(ids(), encoder_hidden_states=torch.ones(2, 5, width))
    with pytest.raises(ValueError, match="encoder_attention_mask has shape"):
        model(
            ids(),
            encoder_hidden_states=torch.ones(3, 5, width),
            encoder_attention_mask=torch.ones(3, 7),
        )


def test_a_decoder_may_run_without_an_encoder():
    model = decoder(add_cross_attention=True)
    assert model(ids()).logits.shape[:2] == (3, 7)
