"""Sentence vectors: a `SentenceTransformer` that computes without padding.

Notation: N texts, D dimensions of a vector.
"""

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from inspect import signature
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import CONFIG_NAME

from hf_bert_impl.auto import registered
from hf_bert_impl.checkpoint_files import (
    check_folder,
    check_size,
    check_tokenizer,
    explained,
)
from hf_bert_impl.data.option_ranges import COUNT, STEPS, check_length
from hf_bert_impl.encoders.lengths import longest_sequence
from hf_bert_impl.encoders.weights import computed_in
from hf_bert_impl.errors import InputError, check_choice, check_whole, one_line
from hf_bert_impl.extras import require
from hf_bert_impl.finite import check_finite, check_numbers
from hf_bert_impl.head_names import check_name, unreadable
from hf_bert_impl.inference.batching import check_text
from hf_bert_impl.inference.joined_calls import JoinedCalls
from hf_bert_impl.inference.loading import find_device, loading_options, refuse_code
from hf_bert_impl.inference.packed_loop import Features, TokenBudget, packable, text_length
from hf_bert_impl.inference.sentence_folder import check_sentence_files
from hf_bert_impl.model import modeling_bert
from hf_bert_impl.model.configuration_bert import EXTENDED_MODEL_TYPE, BertConfig
from hf_bert_impl.model.linear import computed_by, linear
from hf_bert_impl.model.preparing import drop_prepared
from hf_bert_impl.model.steady import steady_layers
from hf_bert_impl.optimization import optimize
from hf_bert_impl.tokenizer_files import (
    TOKENIZER_CONFIG,
    UnusableTokenizer,
    read_fields,
    tokenizer_class,
)

require("sentence_transformers", "embed", "TextEncoder")

from sentence_transformers import SentenceTransformer  # noqa: E402
from sentence_transformers.base.modules import Dense, Transformer  # noqa: E402
from sentence_transformers.sentence_transformer.modules import Pooling  # noqa: E402
from sentence_transformers.util import quantize_embeddings  # noqa: E402

#: Poolings: the mode of `Pooling`, and whether to average the first and last layer.
POOLINGS = {
    "cls": ("cls", False),
    "mean": ("mean", False),
    "max": ("max", False),
    "first-last-average": ("mean", True),
}
#: Activations whose bits do not depend on a number's place in a tensor.
STEADY = (nn.Identity, nn.Tanh, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.Hardtanh, nn.GELU)


class TextEncoder(SentenceTransformer):
    """A `SentenceTransformer` in one step with `optimize`.

    It loads as `SentenceTransformer` does, skips padding, and tokenizes the next texts while the
    model computes. It adds the methods `encode_async` and `from_pretrained`. Vectors are float32
    for any `dtype`.

    Args:
        model_name_or_path: A folder or a hub id: a sentence-transformers model, or a bare BERT,
            which gets mean pooling.
        dtype: The precision of BERT, as in `prepare_for_inference`; None for the saved dtype.
        prepare: Whether to pack the weights for the device's kernels.
        batch_invariant: Whether a text gets the same bits in any batch
            (`BertConfig.batch_invariant`).
        max_length: Maximum number of tokens of a text, including [CLS] and [SEP]; longer texts are
            truncated. None for the model's own.
        pooling: One of `POOLINGS`, in place of the model's own pooling and later modules.
        **options: Other arguments of `SentenceTransformer`.

    Raises:
        ValueError: `optimize` does not support the model, it gives no sentence vectors, weights
            are missing or not finite, or a setting is not supported.
        OSError: The model or its files do not exist.

    Examples:
        >>> encoder = TextEncoder("sentence-transformers/all-MiniLM-L6-v2")
        >>> vectors = encoder.encode(["A cat naps.", "A kitten sleeps."])
        >>> vectors.shape
        (2, 384)
        >>> encoder.similarity(vectors, vectors).shape
        torch.Size([2, 2])
    """

    def __init__(
        self,
        model_name_or_path: str | os.PathLike[str] | None = None,
        *,
        dtype: str | torch.dtype | None = None,
        prepare: bool = True,
        batch_invariant: bool = False,
        max_length: int | None = None,
        pooling: str | None = None,
        device: str | int | torch.device | None = None,
        truncate_dim: int | None = None,
        **options: Any,
    ) -> None:
        # Checks before files are read.
        converted = loading_options(dtype, prepare)
        if pooling is not None:
            check_choice("pooling", pooling, POOLINGS)
        if truncate_dim is not None:
            COUNT.check("truncate_dim", truncate_dim)
        if model_name_or_path is None and options.get("modules") is None:
            raise InputError("there is no model. Give a folder, a hub id or `modules`.")
        path = None if model_name_or_path is None else os.path.expanduser(model_name_or_path)
        options |= {"device": str(find_device(device)), "truncate_dim": truncate_dim}
        with checked_files(path, self.model_type, options):
            super().__init__(path, **options)
        if pooling is not None:
            self._pool_by(pooling)
        saved = self.dtype
        optimize_encoder(self, path, dtype, batch_invariant)
        bert: Any = self.transformers_model
        longest = longest_sequence(bert.config)
        if max_length is not None:
            least = self.tokenizer.num_special_tokens_to_add() + 1
            check_length("max_length", max_length, least, longest)
        shortest = (max_length, self.max_seq_length, longest)
        self.max_seq_length = min(length for length in shortest if length is not None)
        if not prepare:
            drop_prepared(self)
            self[0].to(converted.get("dtype", saved))
        #: Number of tokens computed so far.
        self.tokens = 0

    @classmethod
    def from_pretrained(
        cls,
        path: str | os.PathLike[str],
        dtype: str | torch.dtype | None = None,
        device: str | int | torch.device | None = None,
        *,
        cache_dir: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> Self:
        """Loads a model, as the constructor does.

        Args:
            path: `model_name_or_path` of the constructor.
            dtype: As in the constructor.
            device: As in the constructor.
            cache_dir: `cache_folder` of `SentenceTransformer`.
            **options: Other arguments of the constructor.
        """
        cache = None if cache_dir is None else os.fspath(cache_dir)
        return cls(path, dtype=dtype, device=device, cache_folder=cache, **options)

    @property
    def precision(self) -> str:
        """BERT's dtype, with the kernels if it is prepared."""
        return computed_in(self.transformers_model)

    def forward(self, input: Features, **options: Any) -> Features:
        """The modules' results for a batch of features.

        Raises:
            NotFinite: A vector has NaN or an infinity.
        """
        self.tokens += input["input_ids"].numel()
        features: Features = super().forward(input, **options)
        if not torch.is_grad_enabled() and "sentence_embedding" in features:
            check_numbers(features["sentence_embedding"], self.transformers_model)
        return features

    def encode(self, *arguments: Any, token_budget: int | None = None, **options: Any) -> Any:
        """`SentenceTransformer.encode` in batches of `token_budget` tokens, without padding.

        Args:
            *arguments: As of `SentenceTransformer.encode`.
            token_budget: Maximum number of tokens per batch, in place of `batch_size`. It affects
                memory only. The default is `TOKEN_BUDGET`, unless `batch_size` is given.
            **options: As of `SentenceTransformer.encode`. `precision` may also be "float16".

        Returns:
            As `SentenceTransformer.encode`; (0, D) for no texts.

        Raises:
            InputError: A text is not valid Unicode.
        """
        if token_budget is not None:
            STEPS.check("token_budget", token_budget)
            options["batch_size"] = TokenBudget(token_budget)
        inputs = arguments[0] if arguments else options.get("inputs", options.get("sentences"))
        # Iterating over any other collection may use it up.
        listed: Any = inputs if isinstance(inputs, list | tuple | np.ndarray) else [inputs]
        for index, text in enumerate(listed):
            if isinstance(text, str) and not text.isascii():
                check_text(index, text)
        is_half = options.get("precision") == "float16"
        own = options | {"precision": "float32"} if is_half else options
        vectors = super().encode(*arguments, **own)
        if isinstance(vectors, np.ndarray | Tensor) and vectors.ndim == 1 and not len(vectors):
            return self._in_form(self._no_vectors(options.get("truncate_dim")), options)
        if not is_half:
            return vectors
        if isinstance(vectors, np.ndarray):
            return vectors.astype(np.float16)
        is_tensor = isinstance(vectors, Tensor)
        return vectors.half() if is_tensor else [vector.half() for vector in vectors]

    async def encode_async(
        self,
        texts: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        precision: str = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
    ) -> Any:
        """Encodes one text or many without blocking the event loop.

        One thread computes the texts of all waiting calls, in order, in batches of up to
        `TOKEN_BUDGET` tokens. A cancelled or failed call does not affect the others. Calls may come
        from several event loops.

        Args:
            texts: As in `encode`.
            prompt_name: As in `encode`.
            prompt: As in `encode`.
            precision: As in `encode`.
            convert_to_numpy: As in `encode`.
            convert_to_tensor: As in `encode`.
            normalize_embeddings: As in `encode`.
            truncate_dim: As in `encode`.

        Returns:
            As `encode`; the same bits under `batch_invariant`.
        """
        given = [texts] if isinstance(texts, str) else list(texts)
        for index, text in enumerate(given):
            check_text(index, text)
        if truncate_dim is not None:
            COUNT.check("truncate_dim", truncate_dim)
        alike = (self._resolve_prompt(prompt, prompt_name), normalize_embeddings, truncate_dim)
        rows = await self._joined.run(given, alike)
        vectors = torch.stack(rows) if rows else self._no_vectors(truncate_dim)
        form = {
            "precision": precision,
            "convert_to_numpy": convert_to_numpy,
            "convert_to_tensor": convert_to_tensor,
        }
        result = self._in_form(vectors, form)
        return result[0] if isinstance(texts, str) else result

    def _update_default_model_id(self, model_card: str) -> str:
        """Puts the model's id into its card."""
        placeholder = self._model_card_model_id_placeholder
        return model_card.replace(placeholder, self.model_card_data.model_id or placeholder)

    def _push_to_hub_usage_tip(self, repo_id: str) -> str:
        """The usage tip after a push, with a plain `SentenceTransformer`."""
        tip: str = super()._push_to_hub_usage_tip(repo_id)
        return tip.replace(type(self).__name__, SentenceTransformer.__name__)

    @functools.cached_property
    def _joined(self) -> JoinedCalls:
        return JoinedCalls(self._encoded, functools.partial(text_length, self))

    def _encoded(self, texts: list[str], alike: tuple[str | None, bool, int | None]) -> Any:
        """(n, D) of texts with a prompt."""
        prompt, normalize, truncate_dim = alike
        return self.encode(
            texts,
            prompt=prompt,
            convert_to_tensor=True,
            show_progress_bar=False,
            normalize_embeddings=normalize,
            truncate_dim=truncate_dim,
        )

    def _no_vectors(self, truncate_dim: int | None) -> Tensor:
        """(0, D)."""
        with self.truncate_embeddings(self.truncate_dim if truncate_dim is None else truncate_dim):
            return torch.empty(0, self.get_embedding_dimension() or 0, device=self.device)

    def _in_form(self, vectors: Tensor, options: Mapping[str, Any]) -> Any:
        """Vectors in the form of `encode`'s options."""
        result: Any = vectors
        precision = options.get("precision", "float32")
        if precision == "float16":
            result = vectors.half()
        elif precision != "float32" and len(vectors):
            result = torch.from_numpy(quantize_embeddings(vectors, precision))
        if options.get("convert_to_tensor"):
            return result
        return result.cpu().numpy() if options.get("convert_to_numpy", True) else list(result)

    def _pool_by(self, name: str) -> None:
        """Replaces all modules after BERT."""
        mode, has_first = POOLINGS[name]
        transformer: Any = self[0]
        del self[1:]
        if has_first:
            self.append(FirstLastAverage())
            transformer.config.output_hidden_states = True
        self.append(Pooling(transformer.get_embedding_dimension(), mode))


class FirstLastAverage(nn.Module):
    """The average of the first and the last layer's states, in place of the last layer's.

    Su et al. 2021, https://arxiv.org/abs/2103.15316.
    """

    takes_packed_rows = True

    def forward(self, features: Features) -> Features:
        """Replaces `token_embeddings`."""
        layers = features["all_layer_embeddings"]  # the first are the word embeddings
        features["token_embeddings"] = (layers[1].float() + layers[-1].float()) / 2
        return features


# --- for every model of sentence-transformers ---------------------------------------------------


def optimize_encoder(
    encoder: Any, path: str | None, dtype: str | torch.dtype | None, batch_invariant: bool
) -> None:
    """Checks the weights of a model of sentence-transformers, and optimizes it.

    Args:
        encoder: A loaded model.
        path: Its folder or hub id; None if it was made of modules.
        dtype: As of `optimize`; None for its own dtype. Results stay float32.
        batch_invariant: Whether an input gets the same bits in any batch.

    Raises:
        ValueError: Weights are missing or not finite, or a setting is not supported.
    """
    for part in encoder.modules() if path is not None else ():
        if isinstance(part, Transformer) and not hasattr(part.model, "peft_config"):
            # transformers marks loaded weights; those of a pooler are not read.
            missing = (
                name
                for name, weight in part.model.named_parameters()
                if not getattr(weight, "_is_hf_initialized", False)
                and not name.startswith("pooler.")
            )
            check_whole(path, missing, "the encoder", "restore them, or name another checkpoint")
            _use_own_class(part)
    models = [part for part in encoder.modules() if isinstance(part, PreTrainedModel)]
    saved = encoder.dtype
    encoder.float()  # `optimize` keeps this dtype of the results
    for model in models if batch_invariant else ():
        model.config.batch_invariant = True
    optimize(encoder, saved if dtype is None else dtype)
    check_finite(encoder, path)  # a narrower type can make weights infinite
    if any(getattr(model.config, "batch_invariant", False) for model in models):
        _keep_bits(encoder)


@contextlib.contextmanager
def checked_files(path: str | None, kind: str, options: Mapping[str, Any]) -> Iterator[None]:
    """Checks the files of a model that sentence-transformers loads in this context.

    Args:
        path: A folder or a hub id; None for a model made of modules.
        kind: The class of sentence-transformers that loads it.
        options: The arguments of its constructor.

    Raises:
        InputError: Files are damaged, need code of their own, or are another class's.
        OSError: Files are missing.
    """
    if path is None:
        yield
        return
    check_name(path)
    names = {"revision": "revision", "token": "token", "cache_folder": "cache_dir"}
    place = {new: options[old] for old, new in names.items() if options.get(old) is not None}
    if options.get("local_files_only"):
        place["local_files_only"] = True
    below = check_sentence_files(path, kind, place)
    if below:
        place["subfolder"] = below
    config = read_fields(path, CONFIG_NAME, **place)
    model_type = config.get("model_type")
    own = BertConfig.from_dict(dict(config)) if model_type == BertConfig.model_type else None
    check_size(path, place, config)
    if not options.get("trust_remote_code"):
        refuse_code(path, tokenizer_class(read_fields(path, TOKENIZER_CONFIG, **place), config))
    # transformers refuses these models, or drops what its own class does not compute.
    needs_own = own.is_extended or own.pruned_heads if own else model_type == EXTENDED_MODEL_TYPE
    folder = os.path.join(path, below) if below and os.path.isdir(path) else path
    try:
        with (
            registered() if needs_own else contextlib.nullcontext(),
            explained(check_folder, folder),
            explained(check_tokenizer, path, place),
        ):
            yield
    except (InputError, ImportError):
        raise
    except Exception as error:
        if str(error).startswith(f"{kind}.__init__() got"):  # an unknown argument
            raise
        if "trust_remote_code" in str(error):
            raise UnusableTokenizer(
                f"{path} has code of its own, which is not run. If you trust it, pass "
                "trust_remote_code=True to TextEncoder."
            ) from error
        if isinstance(error, OSError) and not os.path.isdir(path) and path not in str(error):
            raise unreadable(path, error) from error
        if isinstance(error, ValueError | OSError):
            raise
        if "ignore_mismatched_sizes" in str(error):
            raise InputError(
                f"the checkpoint {path} does not fit the config: its weights have other sizes. "
                "Use its own config, or restore its files."
            ) from error
        raise InputError(
            f"{path} could not be loaded ({type(error).__name__}: {one_line(error)[:200]}). "
            "Restore its files."
        ) from error


def _use_own_class(transformer: Any) -> None:
    """Replaces stock's BERT by this package's class with the same weights, which is faster."""
    stock = transformer.model
    is_bert = type(stock).__module__.startswith("transformers.models.bert.")
    kind = getattr(modeling_bert, type(stock).__name__, None) if is_bert else None
    if (
        kind is None
        or hasattr(stock, "hf_device_map")
        or stock.config.to_dict().get("quantization_config")
    ):
        return
    config = BertConfig.from_dict(stock.config.to_dict())
    attention, name = stock.config._attn_implementation, stock.config.name_or_path
    transformer.model = kind.from_pretrained(
        None,
        config=config,
        state_dict=stock.state_dict(),
        dtype=stock.dtype,
        attn_implementation=attention,
    ).to(stock.device)
    transformer.model.name_or_path = transformer.model.config.name_or_path = name
    transformer._declared_forward_params = set(signature(transformer.model.forward).parameters)


def _keep_bits(encoder: Any) -> None:
    """Makes the modules after BERT batch-invariant; InputError if one does not support it."""
    if not packable(encoder):
        raise InputError(
            "`batch_invariant` supports BERT, Pooling, Dense, LayerNorm and Normalize, and "
            "the model has other modules. Leave it out.",
            "batch_invariant",
        )
    for module in encoder:
        if not isinstance(module, Dense):
            continue
        if not isinstance(module.activation_function, STEADY):
            raise InputError(
                "`batch_invariant` supports Dense with "
                f"{', '.join(kind.__name__ for kind in STEADY)}, and the model has "
                f"{type(module.activation_function).__name__}. Leave it out.",
                "batch_invariant",
            )
        vars(module)["forward"] = functools.partial(_steady_dense, module)


def _steady_dense(module: Any, features: Features) -> Features:
    """A batch-invariant `Dense.forward`."""
    vectors = features[module.module_input_name]
    with computed_by(steady_layers(module).products):
        output = module.activation_function(linear(module.linear, vectors))
        if module.use_residual:
            is_same = module.in_features == module.out_features
            output = output + (vectors if is_same else linear(module.residual, vectors))
    features[module.module_output_name] = output
    return features
