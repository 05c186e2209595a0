"""The arguments of `encode`, beside those of sentence-transformers on the same weights."""

import copy

import numpy as np
import pytest
import torch

from hf_bert_impl import TextEncoder
from hf_bert_impl.errors import InputError
from hf_bert_impl.model.cpu_kernels import why_no_kernels
from tests.inference.encoder_cases import LONG, SHORT, TOLERANCE, assert_near

TEXTS = [*SHORT, LONG]
PROMPTS = {"query": "you ", "passage": "the river ", "other": "and "}


@pytest.fixture(scope="module")
def pair(tiny):
    """Ours and stock's, with the same prompts."""
    library = pytest.importorskip("sentence_transformers")
    options = {"prompts": PROMPTS, "default_prompt_name": "other", "device": "cpu"}
    stock = library.SentenceTransformer(str(tiny), **options)
    return TextEncoder.from_pretrained(tiny, **options), stock


def test_positional_arguments_have_the_order_of_stock(pair):
    ours, stock = pair
    everything = ("query", None, 2, False, "sentence_embedding", "float32", True, False, "cpu")
    for arguments in (
        ("query",),
        (None, "nice ", 3),
        (None, None, 32),
        (*everything, True),
        (*everything, True, 7),
        (*everything[:5], "ubinary"),
        (*everything[:6], False),
    ):
        for texts in (TEXTS, TEXTS[2]):
            found, expected = ours.encode(texts, *arguments), stock.encode(texts, *arguments)
            assert type(found) is type(expected)
            np.testing.assert_allclose(
                np.stack(list(found)), np.stack(list(expected)), atol=TOLERANCE
            )
    tensor = ours.encode(TEXTS, *everything[:6], False, True)
    assert isinstance(tensor, torch.Tensor) and tensor.shape == (5, 30)


def test_queries_and_documents(pair, tiny):
    ours, stock = pair
    for name in ("encode_query", "encode_document"):
        mine, theirs = getattr(ours, name), getattr(stock, name)
        for arguments, options in (
            ((), {}),
            ((None, None, 2), {}),
            ((), {"prompt_name": None, "truncate_dim": 5}),
            (("other",), {}),
            ((), {"prompt_name": "passage"}),
            ((None, "a "), {}),
            ((), {"prompt": "", "normalize_embeddings": True}),
        ):
            assert_near(mine(TEXTS, *arguments, **options), theirs(TEXTS, *arguments, **options))
        assert_near(mine(TEXTS[0]), theirs(TEXTS[0]))
    assert not np.array_equal(ours.encode_query(TEXTS), ours.encode_document(TEXTS))
    # "document" is there and empty, so that "passage" is never looked for, as in stock.
    assert np.array_equal(ours.encode_document(TEXTS), ours.encode(TEXTS, prompt=""))


def test_prompts_that_were_taken_away(tiny):
    encoder = TextEncoder.from_pretrained(tiny, device="cpu")
    encoder.prompts = {"corpus": "a ", "passage": "the "}
    assert np.array_equal(encoder.encode_document(SHORT), encoder.encode(SHORT, "passage"))
    assert np.array_equal(encoder.encode_query(SHORT), encoder.encode(SHORT))


def test_saved_prompts_give_way_to_those_of_the_caller(tiny, tmp_path):
    saved = TextEncoder.from_pretrained(
        tiny, device="cpu", prompts=PROMPTS, default_prompt_name="other", truncate_dim=9
    )
    saved.save_pretrained(tmp_path / "saved")
    again = TextEncoder.from_pretrained(
        tmp_path / "saved",
        device="cpu",
        prompts={"query": "nice "},
        default_prompt_name="query",
        truncate_dim=11,
        similarity_fn_name="dot",
    )
    assert again.prompts == {"query": "nice ", "document": "", **PROMPTS} | {"query": "nice "}
    assert (again.default_prompt_name, again.dimension) == ("query", 11)
    assert again.similarity_fn_name == "dot"


@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
def test_precisions(pair, precision):
    ours, stock = pair
    for options in ({}, {"convert_to_tensor": True}, {"convert_to_numpy": False}):
        found = ours.encode(TEXTS, precision=precision, **options)
        expected = stock.encode(TEXTS, precision=precision, **options)
        assert type(found) is type(expected)
        assert found[0].dtype == expected[0].dtype
        # A number may lie on the edge of a step.
        apart = np.abs(np.stack(list(found)).astype(int) - np.stack(list(expected)).astype(int))
        assert (apart > 0).mean() < 0.02


def test_precision_of_floats(encoder):
    exact = encoder.encode(TEXTS)
    half = encoder.encode(TEXTS, precision="float16", normalize_embeddings=False)
    assert np.array_equal(half, exact.astype(np.float16))
    tensor = encoder.encode(TEXTS, precision="float16", convert_to_tensor=True)
    assert tensor.dtype == torch.float16
    assert encoder.encode([], precision="int8").shape == (0, 30)
    assert encoder.encode([], precision="binary").shape == (0, 4)


def test_token_embeddings(pair):
    ours, stock = pair
    options = {"output_value": "token_embeddings"}
    found, expected = ours.encode(TEXTS, **options), stock.encode(TEXTS, **options)
    assert isinstance(found, list) and len(found) == len(TEXTS)
    for one, other in zip(found, expected, strict=True):
        assert_near(one.numpy(), other.numpy())
        assert not one.is_inference()
    assert_near(ours.encode(TEXTS[0], **options).numpy(), expected[0].numpy())
    assert ours.encode([], **options) == []
    few = ours.encode(TEXTS, **options, precision="int8")
    assert [row.dtype for row in few] == [torch.int8] * 5
    for one, other in zip(few, stock.encode(TEXTS, **options, precision="int8"), strict=True):
        assert (one.numpy() != other).mean() < 0.02


def test_everything_about_a_text(pair, monkeypatch):
    ours, stock = pair
    options = {"output_value": None, "prompt_name": "query", "truncate_dim": 7}
    found, expected = ours.encode(TEXTS, **options), stock.encode(TEXTS, **options)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() < other.keys()  # stock says the modality, and the prompt's tokens
        tokens = len(one["input_ids"])
        assert tokens == other["attention_mask"].sum()
        for name in one.keys() - {"sentence_embedding"}:
            torch.testing.assert_close(one[name], other[name][:tokens], atol=1e-5, rtol=0)
        assert one["sentence_embedding"].shape == (7,)
        assert_near(one["sentence_embedding"].numpy(), other["sentence_embedding"].numpy())
    assert torch.equal(ours.encode(TEXTS[0], **options)["input_ids"], found[0]["input_ids"])
    states = ours._states
    calls = []
    monkeypatch.setattr(ours, "_states", lambda batch: calls.append(len(batch)) or states(batch))
    ours.encode(TEXTS, **options)
    assert calls == [5]  # the model is asked once for both


def test_fewer_numbers_for_one_call(pair):
    ours, stock = pair
    for options in ({}, {"normalize_embeddings": True}):
        assert_near(
            ours.encode(TEXTS, truncate_dim=7, **options),
            stock.encode(TEXTS, truncate_dim=7, **options),
        )
    assert ours.encode(TEXTS, truncate_dim=99).shape == (5, 30)
    rows = torch.stack(list(ours.encode_stream(iter(TEXTS), truncate_dim=7)))
    assert np.array_equal(rows.numpy(), ours.encode(TEXTS, truncate_dim=7))


def test_names_of_stock(encoder):
    assert encoder.get_embedding_dimension() == encoder.get_sentence_embedding_dimension() == 30
    before = encoder.max_seq_length
    assert before == encoder.max_length == 31
    try:
        encoder.max_seq_length = 6
        assert encoder.max_length == 6
        assert_near(encoder.encode(LONG), encoder.encode("the river rose and"))
        with pytest.raises(InputError, match="max_length is 32; expected 3 to 31"):
            encoder.max_seq_length = 32
    finally:
        encoder.max_seq_length = before
    said = repr(encoder)
    assert "\n" not in said
    for word in ("TextEncoder", "2 layers of 30", "mean", "31 tokens", "cpu"):
        assert word in said


def test_similarity_is_that_of_the_folder(tiny, tmp_path):
    encoder = TextEncoder.from_pretrained(tiny, device="cpu")
    assert encoder.similarity_fn_name == "cosine"
    vectors = encoder.encode(TEXTS, normalize_embeddings=True)
    cosines = encoder.similarity(vectors, vectors)
    assert torch.allclose(cosines, torch.from_numpy(vectors @ vectors.T), atol=1e-6)
    encoder.similarity_fn_name = "euclidean"
    distances = encoder.similarity_pairwise(vectors[:2], vectors[2:4])
    assert torch.allclose(
        distances, -torch.from_numpy(vectors[:2] - vectors[2:4]).norm(dim=1), atol=1e-6
    )
    encoder.save_pretrained(tmp_path / "saved")
    again = TextEncoder.from_pretrained(tmp_path / "saved", device="cpu")
    assert again.similarity_fn_name == "euclidean"
    with pytest.raises(InputError, match="similarity_fn_name is 'maxsim'; expected one of cosine"):
        again.similarity_fn_name = "maxsim"
    again.similarity_fn_name = None
    assert again.similarity_fn_name == "cosine"


def test_moving_the_model(tiny):
    encoder = TextEncoder.from_pretrained(tiny, device="cpu")
    prepared, before = encoder.model.encoder.prepared, encoder.encode(SHORT)
    assert encoder.to("cpu") is encoder
    assert encoder.model.encoder.prepared is prepared  # nothing was to be moved
    for device in ("cpu", "cpu:0", torch.device("cpu")):
        assert np.array_equal(encoder.encode(SHORT, device=device), before)
    assert encoder.model.encoder.prepared is prepared


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_leaving_the_cpu_and_coming_back(tiny, monkeypatch, dtype):
    encoder = TextEncoder.from_pretrained(tiny, dtype=dtype, device="cpu")
    before, state = encoder.encode(SHORT), copy.deepcopy(encoder.model.state_dict())
    # A device that every machine has, though it holds no numbers.
    encoder.to("meta")
    assert encoder.device.type == "meta" and encoder.model.encoder.prepared is None
    move = type(encoder.model).to

    def fill(model, place):
        if model.device.type == "meta":
            model = model.to_empty(device=place)
            model.load_state_dict(state)
            return model
        return move(model, place)

    monkeypatch.setattr(type(encoder.model), "to", fill)
    assert np.array_equal(encoder.encode(SHORT, device="cpu"), before)
    assert (encoder.model.encoder.prepared is None) == (why_no_kernels(torch.float32) is not None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "int4"}, "precision is 'int4'; expected one of float32, float16"),
        ({"precision": "int8", "texts": "a"}, "there is one vector; expected two"),
        ({"precision": "int8", "texts": ["a"]}, "there is one vector; expected two"),
        ({"precision": "int8", "output_value": None}, "'int8' beside output_value=None"),
        ({"output_value": "tokens"}, "'tokens'; expected one of sentence_embedding, token_emb"),
        ({"truncate_dim": 0}, "truncate_dim is 0; expected a whole number from 1"),
        ({"truncate_dim": 2.5}, "truncate_dim is 2.5"),
        ({"device": "nowhere"}, "device is 'nowhere'.*expected a device of this machine"),
        ({"device": ["cpu", "cpu"]}, "expected one device"),
        ({"device": True}, "expected one device"),
        ({"prompt": 32}, "prompt is 32; expected a text"),
        ({"prompt_name": "x"}, "no prompt 'x'; expected one that .*'query', 'document'"),
    ],
)
def test_wrong_arguments_are_named_before_anything_is_computed(
    encoder, monkeypatch, options, message
):
    monkeypatch.setattr(TextEncoder, "_states", lambda *_: pytest.fail("computed"))
    with pytest.raises(InputError, match=message):
        encoder.encode(**({"texts": SHORT} | options))


def test_what_is_no_list_of_texts(encoder):
    for texts in ({"a": "b"}, {"a", "b"}, 5, None):
        with pytest.raises(TypeError, match=f"texts is {type(texts).__name__}; give a str"):
            encoder.encode(texts)


def test_wrong_arguments_of_loading(tiny, monkeypatch):
    from hf_bert_impl.inference import text_encoder

    monkeypatch.setattr(text_encoder, "read_sentence_model", lambda *_: pytest.fail("read"))
    for options, message in (
        ({"prompts": "query: "}, "prompts is 'query: '; expected texts by name"),
        ({"prompts": {"query": None}}, "prompts is .*expected texts by name"),
        ({"similarity_fn_name": "cos"}, "expected one of cosine"),
        ({"truncate_dim": -1}, "truncate_dim is -1"),
        ({"device": "cuda:99"}, "device is 'cuda:99'"),
    ):
        with pytest.raises(InputError, match=message):
            TextEncoder.from_pretrained(tiny, **options)


@pytest.fixture
def hub_cache(tiny, tmp_path):
    """A cache with one revision of a model in it."""
    saved = tmp_path / "saved"
    TextEncoder.from_pretrained(tiny, device="cpu", truncate_dim=9).save_pretrained(saved)
    model = tmp_path / "cache" / "models--someone--a-model"
    snapshot = model / "snapshots" / ("0" * 40)
    snapshot.parent.mkdir(parents=True)
    saved.rename(snapshot)
    (model / "refs").mkdir()
    (model / "refs" / "v2").write_text(snapshot.name)
    return model.parent


def test_a_revision_from_a_cache(hub_cache, tiny, monkeypatch):
    """Config, modules, tokenizer and weights are all looked for in the same place."""
    from transformers.utils import hub

    tokens, original = [], hub.hf_hub_download

    def watch(*arguments, **options):
        tokens.append(options.get("token"))
        return original(*arguments, **options)

    monkeypatch.setattr(hub, "hf_hub_download", watch)
    place = {"cache_dir": hub_cache, "local_files_only": True, "token": "secret"}
    encoder = TextEncoder.from_pretrained("someone/a-model", device="cpu", revision="v2", **place)
    expected = TextEncoder.from_pretrained(tiny, device="cpu").encode(SHORT)[:, :9]
    assert np.array_equal(encoder.encode(SHORT), expected)
    # transformers 5.6 itself forgets it where a model reads its config a second time.
    assert len(tokens) > 5 and set(tokens) <= {"secret", None} and tokens.count(None) <= 1
    for other in ({"revision": None}, {"revision": "v1"}, {"cache_dir": hub_cache / "none"}):
        with pytest.raises(OSError):
            TextEncoder.from_pretrained(
                "someone/a-model", device="cpu", **({"revision": "v2"} | place | other)
            )
