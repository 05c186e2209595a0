"""What is written for a hub repository, and that nothing of it is left in the process."""

import json
from pathlib import Path

import pytest
import transformers
from transformers import AutoConfig

import hf_bert_impl
import hf_bert_impl.model
from hf_bert_impl.hub.saving import AUTO_MAP, code_files, save_with_code

LEAF = Path(hf_bert_impl.model.__file__).parent


def read(file):
    return json.loads(file.read_text(encoding="utf-8"))


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_every_auto_class_finds_a_class_that_is_uploaded(tiny, tokenizer, tmp_path):
    save_with_code(tiny(), tmp_path, tokenizer)
    auto_map = read(tmp_path / "config.json")["auto_map"]
    assert set(auto_map) == {"AutoConfig", *hf_bert_impl.auto.MODEL_CLASSES}
    auto_map |= {
        auto: found[0]
        for auto, found in read(tmp_path / "tokenizer_config.json")["auto_map"].items()
    }
    for auto, target in auto_map.items():
        assert hasattr(transformers, auto)
        module, _, name = target.partition(".")
        assert (tmp_path / f"{module}.py").read_bytes() == (LEAF / f"{module}.py").read_bytes()
        assert getattr(hf_bert_impl, name).__name__ == name
    assert names(tmp_path) >= {path.name for path in code_files()} | {"model.safetensors"}
    assert "__init__.py" not in names(tmp_path)


def test_plain_saving_stays_plain(tiny, tokenizer, tmp_path):
    model = tiny()
    save_with_code(model, tmp_path / "pushed", tokenizer)
    model.save_pretrained(tmp_path / "plain")
    tokenizer.save_pretrained(tmp_path / "plain")
    assert not any(name.endswith(".py") for name in names(tmp_path / "plain"))
    for file in ("config.json", "tokenizer_config.json"):
        assert "auto_map" not in read(tmp_path / "plain" / file)
    assert type(model)._auto_class is None
    assert not hasattr(model.config, "auto_map")


def test_without_code_it_is_what_save_pretrained_writes(tiny, tokenizer, tmp_path):
    model = tiny("BertForTokenClassification")
    save_with_code(model, tmp_path / "pushed", tokenizer, code=False)
    model.save_pretrained(tmp_path / "plain")
    tokenizer.save_pretrained(tmp_path / "plain")
    assert names(tmp_path / "pushed") == names(tmp_path / "plain")
    for file in names(tmp_path / "plain"):
        assert (tmp_path / "pushed" / file).read_bytes() == (tmp_path / "plain" / file).read_bytes()


def test_code_is_not_claimed_where_it_is_left_out(tiny, tokenizer, tmp_path):
    save_with_code(tiny(), tmp_path / "first", tokenizer)
    again = hf_bert_impl.BertForMaskedLM.from_pretrained(tmp_path / "first")
    words = hf_bert_impl.BertTokenizer.from_pretrained(tmp_path / "first")
    save_with_code(again, tmp_path / "second", words, code=False)
    for file in ("config.json", "tokenizer_config.json"):
        assert "auto_map" not in read(tmp_path / "second" / file)


def test_what_stock_computes_wrongly_has_another_model_type(tiny, tmp_path):
    save_with_code(tiny(position_embedding_type="relative_key"), tmp_path / "own")
    assert read(tmp_path / "own/config.json")["model_type"] == "hf_bert_impl"
    assert read(tmp_path / "own/config.json")["auto_map"] == AUTO_MAP
    with pytest.raises(ValueError, match="trust_remote_code"):
        AutoConfig.from_pretrained(tmp_path / "own", trust_remote_code=False)
    save_with_code(tiny(), tmp_path / "plain")
    assert read(tmp_path / "plain/config.json")["model_type"] == "bert"


def test_classes_whose_code_is_elsewhere_are_refused(tiny, tmp_path):
    class BertForMaskedLM(hf_bert_impl.BertForMaskedLM):
        pass

    config = tiny().config
    stock = transformers.BertModel(transformers.BertConfig(**{**config.to_dict()}))
    for model in (BertForMaskedLM(config), stock):
        with pytest.raises(ValueError, match="expected a class of hf_bert_impl itself"):
            save_with_code(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
