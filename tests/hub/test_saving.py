"""What is written for a hub repository, and that nothing of it is left in the process."""

import json
from pathlib import Path

import pytest
import transformers

import hf_bert_impl
import hf_bert_impl.model
from hf_bert_impl.hub.saving import AUTO_MAP, code_files, save_with_code

LEAF = Path(hf_bert_impl.model.__file__).parent


def read(file):
    return json.loads(file.read_text(encoding="utf-8"))


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_every_auto_class_finds_a_class_that_is_uploaded(tiny, tokenizer, tmp_path):
    save_with_code(tiny(position_embedding_type="relative_key"), tmp_path, tokenizer)
    config, files = read(tmp_path / "config.json"), contents(tmp_path)
    assert config["model_type"] == "hf_bert_impl"  # stock would compute it wrongly
    assert config["auto_map"] == AUTO_MAP
    assert set(AUTO_MAP) == {"AutoConfig", *hf_bert_impl.auto.MODEL_CLASSES}
    assert "auto_map" not in read(tmp_path / "tokenizer_config.json")
    for target in AUTO_MAP.values():
        module, _, name = target.partition(".")
        assert files[f"{module}.py"] == (LEAF / f"{module}.py").read_bytes()
        assert getattr(hf_bert_impl, name).__name__ == name
    assert files.keys() >= {path.name for path in code_files()} | {"model.safetensors"}
    assert "__init__.py" not in files


def test_without_code_it_is_what_save_pretrained_writes(tiny, tokenizer, tmp_path):
    """Also of a model that was saved with code, and loaded again."""
    model = tiny("BertForTokenClassification")
    save_with_code(model, tmp_path / "pushed", tokenizer)
    model.save_pretrained(tmp_path / "plain")
    tokenizer.save_pretrained(tmp_path / "plain")
    plain = contents(tmp_path / "plain")
    assert not any(name.endswith(".py") or b"auto_map" in plain[name] for name in plain)
    assert read(tmp_path / "plain/config.json")["model_type"] == "bert"
    again = type(model).from_pretrained(tmp_path / "pushed")
    words = hf_bert_impl.BertTokenizer.from_pretrained(tmp_path / "pushed")
    save_with_code(model, tmp_path / "first", tokenizer, code=False)
    save_with_code(again, tmp_path / "second", words, code=False)
    assert contents(tmp_path / "first") == plain
    for file in ("config.json", "tokenizer_config.json"):
        assert "auto_map" not in read(tmp_path / "second" / file)


def test_classes_whose_code_is_elsewhere_are_refused(tiny, tmp_path):
    class BertForMaskedLM(hf_bert_impl.BertForMaskedLM):
        pass

    config = tiny().config
    stock = transformers.BertModel(transformers.BertConfig(**{**config.to_dict()}))
    for model in (BertForMaskedLM(config), stock):
        with pytest.raises(ValueError, match="not a class of hf_bert_impl"):
            save_with_code(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
