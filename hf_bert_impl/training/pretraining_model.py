"""The tokenizer, config and initial weights of pre-training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hf_bert_impl.errors import InputError
from hf_bert_impl.files.json_files import read_json
from hf_bert_impl.inference import loading
from hf_bert_impl.model.configuration_bert import CODERTIMO_FIELDS, BertConfig
from hf_bert_impl.model.modeling_bert import BertForMaskedLM, BertForPreTraining
from hf_bert_impl.tokenization_bert import BertTokenizer
from hf_bert_impl.training.opening import open_weights
from hf_bert_impl.training.pretraining_options import PretrainingOptions

MODELS = {"mlm+nsp": BertForPreTraining, "mlm": BertForMaskedLM}
#: Default width of an attention head, as in every BERT of Google.
HEAD_SIZE = 64


def load_tokenizer(options: PretrainingOptions) -> Any:
    """The named tokenizer, or the model's.

    Raises:
        ValueError, OSError: No tokenizer is named, or it cannot be read.
    """
    name = options.tokenizer or options.model
    if name is None:
        raise InputError(
            "no tokenizer is named. Make one with `hf-bert tokenizer train`, or name that of a "
            "checkpoint."
        )
    return loading.load_tokenizer(name)


def build_config(options: PretrainingOptions, tokenizer: BertTokenizer) -> BertConfig:
    """The model's config, from a checkpoint, a file or sizes.

    Its pad token is the tokenizer's, so that padding of batches is not computed.

    Raises:
        ValueError, OSError: The config cannot be read, or does not fit the tokenizer or the text.
    """
    if options.model is not None:
        if options.config is not None or options.sizes:
            raise InputError(
                f"the sizes of {options.model} are given by its weights. Leave config and sizes "
                "out, or leave the model out to start from random weights."
            )
        config = BertConfig.from_pretrained(options.model)
    else:
        sizes = dict(options.sizes)
        if options.config is None:
            width = sizes.get("hidden_size", 768)
            fitting = {
                "vocab_size": len(tokenizer),
                "num_attention_heads": max(1, width // HEAD_SIZE),
                "intermediate_size": 4 * width,
                "max_position_embeddings": max(512, options.max_length),
            }
            if options.variant == "codertimo":  # its code fixes these sizes
                fixed = {"intermediate_size": 4 * width, "max_position_embeddings": 512}
                fitting |= CODERTIMO_FIELDS | fixed
                for name, size in fixed.items():
                    if sizes.get(name, size) != size:
                        raise InputError(
                            f"{name} is {sizes[name]}, and codertimo's code has {size}. Leave it "
                            "out."
                        )
            config = BertConfig.from_dict(fitting | sizes)
        else:
            file = Path(options.config)
            if file.is_dir():  # from_pretrained takes BERT-base's sizes if the file is missing
                file = file / "config.json"
                read_json(file, "the sizes of a model")
            config = BertConfig.from_pretrained(file if file.exists() else options.config, **sizes)
    if tokenizer.pad_token_id is not None and config.variant == "bert":
        config.pad_token_id = tokenizer.pad_token_id
    return check_config(config, options, tokenizer)


def check_config(
    config: BertConfig, options: PretrainingOptions, tokenizer: BertTokenizer
) -> BertConfig:
    """Raises InputError if the vocabulary, positions or architecture do not fit the options."""
    if config.vocab_size < len(tokenizer):
        raise InputError(
            f"the config has vocab_size={config.vocab_size} and the tokenizer {len(tokenizer)} "
            "tokens. Raise vocab_size, or use another tokenizer."
        )
    if options.max_length > config.max_position_embeddings:
        # codertimo's code has 512, whatever the config says.
        longer = "" if config.variant == "codertimo" else ", or give the model more positions"
        raise InputError(
            f"max_length={options.max_length} is more than the {config.max_position_embeddings} "
            f"positions of the model. Shorten it{longer}.",
            "max_length",
        )
    if config.is_decoder:
        raise InputError(
            "the config has is_decoder=True, and pre-training makes the labels of an encoder. Set "
            "is_decoder to false."
        )
    if options.variant not in ("bert", config.variant):
        raise InputError(
            f"variant is {options.variant!r}, and the config's is {config.variant!r}. Leave "
            "`variant` out: the config decides.",
            "variant",
        )
    if config.variant == "codertimo" and tokenizer.pad_token_id != config.pad_token_id:
        raise InputError(
            f"the tokenizer's pad token has the id {tokenizer.pad_token_id}, and codertimo's model "
            f"pads with {config.pad_token_id}. Make the vocabulary with `hf-bert tokenizer words`."
        )
    return config


def build_model(options: PretrainingOptions, config: BertConfig) -> Any:
    """The initial model; call `set_seed` first for random weights.

    Raises:
        ValueError, OSError: The checkpoint cannot be read, or its weights are not finite.
    """
    model_class = MODELS[options.objective]
    if options.model is None:
        model = model_class(config)
    else:
        model, _ = open_weights(model_class, options.model, config=config)
    if options.gradient_checkpointing:
        # Newer releases of transformers warn at the second name.
        enable = getattr(model, "activation_checkpointing_enable", None)
        (enable or model.gradient_checkpointing_enable)()
    return model
