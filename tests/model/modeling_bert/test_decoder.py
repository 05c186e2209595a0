"""BERT as a decoder: cache, generation, cross-attention."""

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache, EncoderDecoderModel

from hf_bert_impl.model.masks import CACHE
from hf_bert_impl.parity import reference_model
from tests.model.cases import BACKENDS, random_config, random_model

KINDS = ("absolute", "relative_key", "relative_key_query", "sinusoidal")
#: Of `generate`; the random tokens are below 61.
GREEDY = dict(max_new_tokens=9, do_sample=False, pad_token_id=0)


def decoder(**fields):
    fields = dict(num_hidden_layers=2, max_position_embeddings=33, vocab_size=61) | fields
    return random_model("BertLMHeadModel", random_config(1, "BertLMHeadModel", **fields))


def ids(rows=3, length=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 61, (rows, length), generator=generator)


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_cache_changes_nothing(backend, kind, name):
    """And a token sees no later one: the first part was computed without the rest."""
    model = decoder(attn_implementation=backend, position_embedding_type=kind)
    tokens = ids()
    with torch.no_grad():
        whole = model(tokens, output_attentions=True)
        first = model(tokens[:, :4], use_cache=True)
        rest = model(tokens[:, 4:], output_attentions=True, **{name: first[CACHE]})
    logits = torch.cat([first.logits, rest.logits], 1)
    assert torch.allclose(whole.logits, logits, atol=1e-5)
    for a, b in zip(whole.attentions, rest.attentions, strict=True):
        assert b.shape == (3, a.shape[1], 3, 7)
        assert torch.allclose(a[:, :, 4:], b, atol=1e-5)
    assert rest[CACHE].get_seq_length() == 7


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("beams", [1, 3])
def test_generates_what_upstream_generates(backend, beams):
    ours = decoder(attn_implementation=backend)
    prompt = ids(2, 5)
    mask = torch.ones_like(prompt)
    mask[1, :2] = 0  # left padding
    options = GREEDY | dict(attention_mask=mask, num_beams=beams)
    tokens = ours.generate(prompt, **options)
    assert tokens.shape[1] > 6
    assert torch.equal(tokens, reference_model(ours).generate(prompt, **options))
    assert torch.equal(tokens, ours.generate(prompt, use_cache=False, **options))
    if beams == 1:
        static = dict(cache_implementation="static", disable_compile=True)
        assert torch.equal(tokens, ours.generate(prompt, **static, **options))


def test_one_cache_by_two_names():
    model = decoder()
    past = model(ids(), use_cache=True)[CACHE]
    with pytest.raises(ValueError, match="two names of one argument"):
        model(ids(), cache=past, past_key_values=DynamicCache(config=model.config))


def test_generates_in_an_encoder_decoder_model():
    encoder = random_model("BertModel", random_config(1, "BertModel", vocab_size=61))
    ours = EncoderDecoderModel(encoder=encoder, decoder=decoder(add_cross_attention=True)).eval()
    theirs = EncoderDecoderModel(
        encoder=reference_model(encoder), decoder=reference_model(ours.decoder)
    ).eval()
    theirs.enc_to_dec_proj = ours.enc_to_dec_proj
    options = GREEDY | dict(decoder_start_token_id=1, eos_token_id=None)
    tokens = ours.generate(ids(), **options)
    assert torch.equal(tokens, theirs.generate(ids(), **options))
    assert torch.equal(tokens, ours.generate(ids(), use_cache=False, **options))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("masked", [True, False])
def test_cross_attention_equals_upstream(backend, masked):
    ours = decoder(add_cross_attention=True, attn_implementation=backend)
    generator = torch.Generator().manual_seed(3)
    states = torch.randn(3, 5, ours.config.hidden_size, generator=generator)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 1, 0]]) if masked else None
    given = dict(encoder_hidden_states=states, encoder_attention_mask=mask)
    tokens = ids()
    with torch.no_grad():
        a = ours(tokens, **given, output_attentions=True)
        b = reference_model(ours)(tokens, **given)
        assert torch.allclose(a.logits, b.logits, atol=1e-5)
        assert isinstance(a[CACHE], EncoderDecoderCache)
        first = ours(tokens[:, :3], **given, use_cache=True)
        rest = ours(tokens[:, 3:], **given, past_key_values=first[CACHE])
        assert torch.allclose(rest.logits, a.logits[:, 3:], atol=1e-5)
        plain = ours(tokens, **given, past_key_values=DynamicCache(config=ours.config))
        assert torch.allclose(plain.logits, a.logits, atol=1e-5)
    assert a.cross_attentions[0].shape == (3, ours.config.num_attention_heads, 7, 5)
    assert torch.allclose(a.cross_attentions[0].sum(-1), torch.ones(()), atol=1e-5)
    assert not masked or not a.cross_attentions[0][1, :, :, 2:].any()
    assert ours(tokens).logits.shape[:2] == (3, 7)  # without an encoder
