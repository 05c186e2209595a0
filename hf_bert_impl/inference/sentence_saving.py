"""Writing a model in sentence-transformers' layout, which `sentence_folder.py` reads.

Modules and settings have the names that its releases from 5.0 on read, older ones where there are
two, so that the folder asks for no certain release.
"""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import nn

from hf_bert_impl.errors import InputError
from hf_bert_impl.files.json_files import read_json
from hf_bert_impl.files.output_folder import claimed, output_folder
from hf_bert_impl.inference.loading import TOKENIZER_CONFIG, brings_code
from hf_bert_impl.inference.pooling import Dense, LayerNorm, Normalize, Pooling
from hf_bert_impl.inference.sentence_folder import (
    MODULES,
    SETTINGS,
    TRANSFORMER_CONFIG,
    SentenceModel,
)

_PACKAGE = "sentence_transformers.models"


def save_sentence_model(
    folder: Path, model: Any, tokenizer: Any, described: SentenceModel, overwrite: bool = False
) -> None:
    """Saves a model with everything that makes its vectors.

    Args:
        folder: A new or an empty folder; it appears when it is complete.
        model: The BERT.
        tokenizer: Its tokenizer.
        described: All else; `subfolder` is not used.
        overwrite: Replace a folder with files in it.

    Raises:
        ValueError: The folder has files or cannot be written, or sentence-transformers has nothing
            that would give the same vectors.
    """
    library: list[Any] = list(described.pooling.modules)
    modules: list[Any] = [*(library or [described.pooling]), *described.modules]
    # Modules of the library save themselves.
    size = model.config.hidden_size
    configs = [None if module in library else _config(module, size) for module in modules]
    listed = [{"idx": 0, "name": "0", "path": "", "type": f"{_PACKAGE}.Transformer"}]
    for number, module in enumerate(modules, 1):
        kind = "Pooling" if isinstance(module, Pooling) else type(module).__name__
        place = {"name": str(number), "path": f"{number}_{kind}", "type": f"{_PACKAGE}.{kind}"}
        listed.append({"idx": number, **place})
    source = Path(model.name_or_path)
    sources = [source] if model.name_or_path and source.is_dir() else []
    with claimed(folder, sources, overwrite), output_folder(folder) as fresh:
        model.save_pretrained(fresh)
        # The class is one of ours without a pooler; code that came with it does not lie here.
        _edit(fresh / "config.json", architectures=["BertModel"], auto_map=None)
        tokenizer.save_pretrained(fresh)
        length = described.max_length
        dropped = {} if brings_code(tokenizer) else {"auto_map": None}
        _edit(fresh / TOKENIZER_CONFIG, model_max_length=length, **dropped)
        lengths = {"max_seq_length": length, "do_lower_case": described.do_lower_case}
        _write(fresh / TRANSFORMER_CONFIG, lengths)
        _write(fresh / MODULES, listed)
        _write(fresh / SETTINGS, _settings(described))
        for entry, config, module in zip(listed[1:], configs, modules, strict=True):
            below = fresh / str(entry["path"])
            below.mkdir()
            if config is None:
                module.save(str(below))
                continue
            _write(below / "config.json", config)
            weights = module.state_dict() if isinstance(module, nn.Module) else {}
            if weights:
                whole = {name: tensor.contiguous().cpu() for name, tensor in weights.items()}
                save_file(whole, below / "model.safetensors", metadata={"format": "pt"})


def _settings(described: SentenceModel) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "model_type": "SentenceTransformer",
        "prompts": described.prompts,
        "default_prompt_name": described.default_prompt_name,
        "similarity_fn_name": described.similarity_fn_name,
    }
    if described.truncate_dim is not None:
        settings["truncate_dim"] = described.truncate_dim
    return settings


def _config(module: Any, size: int) -> dict[str, Any]:
    """The config.json of a module behind a BERT of this size."""
    if isinstance(module, Pooling):
        if module.first_and_last:
            raise InputError(
                "the pooling averages the first and the last layer",
                "a pooling that sentence-transformers has",
                "choose another pooling, or save encoder.model and encoder.tokenizer by themselves",
            )
        common = {"word_embedding_dimension": size, "include_prompt": module.include_prompt}
        return common | module.to_config()
    if type(module) in (Dense, LayerNorm):
        fields: dict[str, Any] = module.to_config()
        return fields
    if type(module) is not Normalize:
        raise InputError(
            f"a module is a {type(module).__name__}",
            "Dense, LayerNorm or Normalize of hf_bert_impl.inference.pooling",
            "leave it out, or apply it to what encode gives",
        )
    return {}


def _edit(file: Path, **changes: Any) -> None:
    """Changes fields of a JSON file; None takes one out."""
    fields = read_json(file) | changes
    _write(file, {name: value for name, value in fields.items() if name not in changes or value})


def _write(file: Path, content: Any) -> None:
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    file.write_text(text, encoding="utf-8")
