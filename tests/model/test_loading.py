"""State dicts in both directions, every kind of checkpoint file, dtypes, devices, tying."""

import json
import resource
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.models.bert import modeling_bert as upstream

import hf_bert_impl
from hf_bert_impl import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertForSequenceClassification,
    BertModel,
)
from hf_bert_impl.model.loading import check_finite, not_finite
from tests.model.cases import HEADS, random_batch, random_config, random_model

TOLERANCE = 2e-5


def load(name, folder, **options):
    return getattr(hf_bert_impl, name).from_pretrained(folder, output_loading_info=True, **options)


def clean(info, *, missing=(), unexpected=()):
    assert sorted(info["missing_keys"]) == sorted(missing)
    assert sorted(info["unexpected_keys"]) == sorted(unexpected)
    assert not info["mismatched_keys"]
    return True


def same_weights(a, b):
    assert list(a.state_dict()) == list(b.state_dict())
    return all(torch.equal(x, b.state_dict()[name]) for name, x in a.state_dict().items())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("head", HEADS)
def test_keys_and_shapes_are_upstreams(head, tied):
    ours = random_model(head, random_config(1, head, tie_word_embeddings=tied))
    fields = ours.config.to_dict()
    theirs = getattr(upstream, head)(upstream.BertConfig.from_dict(fields))
    assert {n: x.shape for n, x in ours.state_dict().items()} == {
        n: x.shape for n, x in theirs.state_dict().items()
    }
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("head", HEADS)
def test_saved_here_loads_there_and_back(tmp_path, head, tied, sharded):
    ours = random_model(head, random_config(2, head, tie_word_embeddings=tied))
    options = {"max_shard_size": "10KB"} if sharded else {}
    ours.save_pretrained(tmp_path / "ours", **options)
    assert (tmp_path / "ours" / "model.safetensors.index.json").exists() == sharded
    theirs, info = getattr(upstream, head).from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert clean(info)
    assert same_weights(ours, theirs)
    theirs.save_pretrained(tmp_path / "theirs", **options)
    again, info = load(head, tmp_path / "theirs")
    assert clean(info)
    assert same_weights(ours, again)
    saved = [
        sorted(set().union(*(load_file(f) for f in (tmp_path / side).glob("*.safetensors"))))
        for side in ("ours", "theirs")
    ]
    assert saved[0] == saved[1]


CHECKPOINTS = {
    "hf_legacy": "BertForPreTraining",
    "hf_legacy_sharded": "BertForPreTraining",
    "hf_safetensors": "BertForPreTraining",
    "hf_safetensors_sharded": "BertForPreTraining",
    "hf_base_no_prefix": "BertModel",
    "hf_mlm_no_pooler": "BertForMaskedLM",
    "hf_bf16_classifier": "BertForSequenceClassification",
    "hf_legacy_fp16_token_classifier": "BertForTokenClassification",
}
FIELDS = {
    "sequence_output": "last_hidden_state",
    "pooled_output": "pooler_output",
    "mlm_logits": "prediction_logits",
    "nsp_logits": "seq_relationship_logits",
    "logits": "logits",
}


@pytest.mark.parametrize("padding_free", [True, False])
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoints_of_older_software(fixtures_dir, name, padding_free):
    """Files with position_ids, tied decoders, half precision, shards: outputs of who wrote them."""
    folder = fixtures_dir / name
    model, info = load(CHECKPOINTS[name], folder, padding_free=padding_free)
    assert clean(info)
    source = folder if (folder / "expected.npz").exists() else fixtures_dir / "hf_legacy"
    with np.load(source / "expected.npz") as arrays:
        values = {key: torch.from_numpy(arrays[key]) for key in arrays.files}
    batch = {k: values[k] for k in ("input_ids", "attention_mask", "token_type_ids")}
    mask = batch["attention_mask"].bool()
    with torch.no_grad():
        output = model.float()(**batch, output_hidden_states=True)
    compared = 0
    for states, layer in zip(
        output.hidden_states[1:], values.get("all_encoder_layers", ()), strict=False
    ):
        assert (states - layer)[mask].abs().max() < TOLERANCE
        compared += 1
    for key, field in FIELDS.items():
        found = output.get("logits" if key == "mlm_logits" and "logits" in output else field)
        if key not in values or found is None:
            continue
        difference = found - values[key]
        assert (difference[mask] if difference.dim() == 3 else difference).abs().max() < TOLERANCE
        compared += 1
    assert compared >= 2


def test_gamma_and_beta(fixtures_dir, tmp_path):
    """What pytorch_pretrained_bert wrote in 2018: other LayerNorm names, no decoder bias."""
    folder = fixtures_dir / "pytorch_pretrained_bert"
    shutil.copy(folder / "pytorch_model.bin", tmp_path)
    fields = json.loads((folder / "bert_config.json").read_text())
    BertConfig(**fields).save_pretrained(tmp_path)
    model, info = load("BertForPreTraining", tmp_path)
    assert clean(info)
    with np.load(folder / "expected.npz") as arrays:
        values = {key: torch.from_numpy(arrays[key]) for key in arrays.files}
    with torch.no_grad():
        output = model(values["input_ids"], values["attention_mask"], values["token_type_ids"])
    mask = values["attention_mask"].bool()
    assert (output.prediction_logits - values["mlm_logits"])[mask].abs().max() < TOLERANCE
    assert (output.seq_relationship_logits - values["nsp_logits"]).abs().max() < TOLERANCE


def test_base_into_head_and_head_into_base(tmp_path):
    base = random_model("BertModel", random_config(3, tie_word_embeddings=True))
    base.save_pretrained(tmp_path / "base")
    head, info = load("BertForMaskedLM", tmp_path / "base")
    assert same_weights(head.bert.embeddings, base.embeddings)
    assert same_weights(head.bert.encoder, base.encoder)
    assert all(name.startswith("cls.") for name in info["missing_keys"])
    assert all("pooler" in name for name in info["unexpected_keys"])
    head.save_pretrained(tmp_path / "head")
    again, info = load("BertModel", tmp_path / "head")
    assert same_weights(again.encoder, base.encoder)
    assert sorted(info["missing_keys"]) == ["pooler.dense.bias", "pooler.dense.weight"]
    assert all(name.startswith("cls.") for name in info["unexpected_keys"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, "auto"])
def test_dtype(tmp_path, dtype):
    random_model("BertModel", random_config(1)).half().save_pretrained(tmp_path)
    model = BertModel.from_pretrained(tmp_path, dtype=dtype)
    assert model.dtype == (torch.float16 if dtype == "auto" else dtype)


@pytest.mark.parametrize("kind", ["absolute", "sinusoidal"])
@pytest.mark.parametrize("device_map", ["auto", "cpu", {"": "cpu"}])
def test_device_map(tmp_path, device_map, kind):
    config = random_config(1, position_embedding_type=kind)
    model = random_model("BertModel", config)
    model.save_pretrained(tmp_path)
    mapped = BertModel.from_pretrained(tmp_path, device_map=device_map)
    batch = random_batch("BertModel", config, None)
    with torch.no_grad():
        difference = mapped(**batch).last_hidden_state - model(**batch).last_hidden_state
    assert difference.abs().max() == 0


@pytest.mark.parametrize("head", HEADS)
def test_meta_device_then_loaded(tmp_path, head):
    config = random_config(4, head, position_embedding_type="sinusoidal")
    with torch.device("meta"):
        empty = getattr(hf_bert_impl, head)(config)
    assert all(x.is_meta for x in (*empty.parameters(), *empty.buffers()))
    model = random_model(head, config)
    model.save_pretrained(tmp_path)
    loaded = load(head, tmp_path, low_cpu_mem_usage=True)[0]
    assert same_weights(loaded, model)
    for name, buffer in model.named_buffers():
        assert torch.equal(loaded.get_buffer(name), buffer)


def tie_holds(model):
    decoder = model.get_output_embeddings()
    return (
        decoder.weight is model.get_input_embeddings().weight
        and decoder.bias is model.cls.predictions.bias
    )


@pytest.mark.parametrize("head", ["BertForPreTraining", "BertForMaskedLM", "BertLMHeadModel"])
def test_tying_survives_save_load_and_resize(tmp_path, head):
    config = random_config(1, head, tie_word_embeddings=True, vocab_size=50)
    model = random_model(head, config)
    assert tie_holds(model)
    model.save_pretrained(tmp_path)
    model = load(head, tmp_path)[0]
    assert tie_holds(model)
    before = model.get_input_embeddings().weight.detach().clone()
    model.resize_token_embeddings(57)
    assert tie_holds(model)
    assert model.config.vocab_size == 57
    assert model.cls.predictions.bias.shape == (57,)
    assert torch.equal(model.get_input_embeddings().weight[:50], before)
    ids = torch.tensor([[56, 3]])
    logits = model(ids)[0]
    assert logits.shape == (1, 2, 57)
    logits.sum().backward()
    assert model.get_input_embeddings().weight.grad.abs().sum() > 0
    model.resize_token_embeddings(41)
    assert tie_holds(model)
    with pytest.raises(ValueError, match="vocab_size=41"):
        model(ids)


def test_untied_weights_stay_apart(tmp_path):
    config = random_config(1, "BertForMaskedLM", tie_word_embeddings=False)
    model = random_model("BertForMaskedLM", config)
    model.save_pretrained(tmp_path)
    again = BertForMaskedLM.from_pretrained(tmp_path)
    decoder = again.get_output_embeddings().weight
    assert decoder is not again.get_input_embeddings().weight
    assert not torch.equal(decoder, again.get_input_embeddings().weight)
    assert same_weights(model, again)


def test_legacy_checkpoints_load_tied(fixtures_dir):
    assert tie_holds(BertForPreTraining.from_pretrained(fixtures_dir / "hf_legacy"))


class TestUnusableFolders:
    """One line each: what is wrong and what would do."""

    @pytest.fixture
    def folder(self, tmp_path):
        model = random_model("BertForSequenceClassification", random_config(1, num_labels=3))
        model.save_pretrained(tmp_path)
        return tmp_path

    def refuses(self, error, said, folder, head="BertForSequenceClassification", **options):
        with pytest.raises(error, match=said) as caught:
            getattr(hf_bert_impl, head).from_pretrained(folder, **options)
        assert "\n" not in str(caught.value)

    def test_no_such_folder(self, tmp_path):
        self.refuses(OSError, "nowhere does not exist", tmp_path / "nowhere")

    def test_no_config(self, folder):
        (folder / "config.json").unlink()
        self.refuses(OSError, "no config.json", folder)

    def test_no_weights(self, folder):
        (folder / "model.safetensors").unlink()
        self.refuses(OSError, "no weights; one of model.safetensors", folder)

    @pytest.mark.parametrize("kept", [0, 5, 300, -7])
    def test_truncated_weights(self, folder, kept):
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:kept])
        self.refuses(OSError, "cannot be read", folder)

    def test_no_safetensors_at_all(self, folder):
        (folder / "model.safetensors").write_bytes(b"<!DOCTYPE html><html>not found</html>")
        self.refuses(OSError, "cannot be read", folder)

    @pytest.mark.parametrize("shard", ["../model.safetensors", "missing.safetensors", 3])
    def test_an_index_that_leads_nowhere(self, folder, shard):
        (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
        index = {"metadata": {}, "weight_map": {"classifier.bias": shard}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        self.refuses(OSError, str(shard), folder)

    def test_an_index_that_is_none(self, folder):
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text("[]")
        self.refuses(OSError, "holds a list; expected an index of weights", folder)

    def test_num_labels_that_do_not_fit(self, folder):
        self.refuses(
            RuntimeError, r"classifier.bias is \(3,\), the model has \(5,\)", folder, num_labels=5
        )

    def test_num_labels_may_be_replaced(self, folder):
        model, info = load(
            "BertForSequenceClassification", folder, num_labels=5, ignore_mismatched_sizes=True
        )
        assert model.classifier.out_features == 5
        assert {key for key, *_ in info["mismatched_keys"]} == {
            "classifier.bias",
            "classifier.weight",
        }

    def test_other_sizes_than_the_config(self, folder):
        weights = load_file(folder / "model.safetensors")
        name = "bert.encoder.layer.0.output.dense.weight"
        weights[name] = weights[name][:, :-1].contiguous()
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        self.refuses(RuntimeError, f"{name} is", folder)

    def test_three_labels_are_no_start_and_end(self, folder):
        self.refuses(ValueError, "num_labels=3 does not fit", folder, "BertForQuestionAnswering")


class TestConfigsTooLarge:
    """A small config beside small weights does not take the machine's memory."""

    @pytest.fixture
    def folder(self, tmp_path):
        model = random_model("BertForSequenceClassification", random_config(1, num_labels=3))
        model.save_pretrained(tmp_path)
        return tmp_path

    @pytest.fixture
    def little_memory(self):
        limits = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (6 << 30, limits[1]))
        yield
        resource.setrlimit(resource.RLIMIT_DATA, limits)

    @pytest.mark.parametrize(
        ("field", "value", "said"),
        [
            ("num_hidden_layers", 100_000, "num_hidden_layers=100000 is not valid; .* 0 to 1000"),
            ("num_labels", 10**9, "num_labels=1000000000 is not valid; .* 0 to 4000000"),
            ("hidden_size", 10**9, "hidden_size=1000000000 is not valid"),
            ("vocab_size", 10**9, r"word_embeddings.weight is \(1000000000, "),
            ("max_position_embeddings", 10**9, r"position_embeddings.weight is \(1000000000, "),
            ("type_vocab_size", 10**9, r"token_type_embeddings.weight is \(1000000000, "),
            ("intermediate_size", 10**9, r"intermediate.dense.weight is \(1000000000, "),
            ("num_labels", 4_000_000.0, "num_labels=4000000.0 is not valid"),
            ("vocab_size", 10**30, "vocab_size=1000000000000000000000000000000 is not valid"),
        ],
    )
    @pytest.mark.parametrize("head", ["BertModel", "BertForSequenceClassification"])
    @pytest.mark.parametrize("shards", [False, True])
    def test_refused_before_memory_is_taken(
        self, folder, little_memory, field, value, said, head, shards
    ):
        if shards:
            (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
            names = load_file(folder / "model-00001-of-00001.safetensors")
            weight_map = dict.fromkeys(names, "model-00001-of-00001.safetensors")
            index = {"metadata": {}, "weight_map": weight_map}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        fields = json.loads((folder / "config.json").read_text())
        for name in ("id2label", "label2id"):
            fields.pop(name, None)
        (folder / "config.json").write_text(json.dumps(fields | {field: value}))
        for options in ({}, {"ignore_mismatched_sizes": True}):
            with pytest.raises(ValueError, match=said) as caught:
                getattr(hf_bert_impl, head).from_pretrained(folder, **options)
            assert "\n" not in str(caught.value)

    def test_a_pickle_is_told_by_its_bytes(self, folder):
        state = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        torch.save(state, folder / "pytorch_model.bin")
        model = BertForSequenceClassification.from_pretrained(folder)
        assert torch.equal(model.classifier.weight, state["classifier.weight"])
        fields = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(fields | {"vocab_size": 10**9}))
        with pytest.raises(ValueError, match=r"makes a model of .* give the config that belongs"):
            BertForSequenceClassification.from_pretrained(folder)

    def test_a_computed_table_counts(self, tmp_path):
        config = random_config(1, position_embedding_type="sinusoidal")
        random_model("BertModel", config).save_pretrained(tmp_path)
        fields = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(
            json.dumps(fields | {"max_position_embeddings": 10**9})
        )
        with pytest.raises(ValueError, match=r"position_embeddings.table is"):
            BertModel.from_pretrained(tmp_path)

    def test_what_is_asked_for_by_name_goes_on_to_work(self, folder):
        wide = {"num_labels": 200_000, "ignore_mismatched_sizes": True}
        model = BertForSequenceClassification.from_pretrained(folder, **wide)
        assert model.classifier.out_features == 200_000
        deep = BertModel.from_pretrained(folder, num_hidden_layers=30)
        assert len(deep.encoder.layer) == 30
        words = BertModel.from_pretrained(folder, vocab_size=90_001, ignore_mismatched_sizes=True)
        assert words.embeddings.word_embeddings.num_embeddings == 90_001
        with pytest.raises(RuntimeError, match=r"word_embeddings.weight is .*90001"):
            BertModel.from_pretrained(folder, vocab_size=90_001)

    def test_a_config_alone_has_only_the_stated_limits(self):
        with torch.device("meta"):
            model = BertModel(
                BertConfig(vocab_size=10**8, max_position_embeddings=10**7, num_hidden_layers=0)
            )
        assert model.embeddings.word_embeddings.weight.shape == (10**8, 768)


# --- weights that are no numbers -------------------------------------------------------------


def spoil(folder, model, name, value, place=-1):
    model = getattr(hf_bert_impl, model).from_pretrained(folder)
    with torch.no_grad():
        model.get_parameter(name).view(-1)[place] = value
    model.save_pretrained(folder)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_not_finite_wherever_it_is(dtype, value):
    """The largest numbers of a type are numbers, however many; tied weights are named once."""
    model = random_model("BertForMaskedLM", random_config(3, "BertForMaskedLM")).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.finfo(dtype).max)
    check_finite(model, "it")
    names = [name for name, _ in model.named_parameters()]
    for number, name in enumerate(names):
        with torch.no_grad():
            model.get_parameter(name).view(-1)[number % 3] = value
    assert list(not_finite(model)) == names
    what = "1 NaN" if value != value else "1 infinities"
    words = (
        rf"it has weights .*: {what} among the \d+ of {names[0]}, and {len(names) - 1} more tens"
    )
    with pytest.raises(ValueError, match=words):
        check_finite(model, "it")


def test_from_pretrained_takes_what_upstream_takes(tmp_path):
    random_model("BertModel", random_config(4)).save_pretrained(tmp_path)
    spoil(tmp_path, "BertModel", "encoder.layer.0.output.dense.bias", float("nan"))
    assert list(not_finite(BertModel.from_pretrained(tmp_path)))
