"""Sentence vectors: a `SentenceTransformer` that computes without padding.

Notation: N texts, T tokens of a batch, D dimensions of a vector.
"""

import contextlib
import functools
import os
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModel

from hf_bert_impl.auto import registered
from hf_bert_impl.checkpoint_files import check_folder
from hf_bert_impl.data.option_ranges import COUNT, STEPS, check_length
from hf_bert_impl.data.token_budget import TOKEN_BUDGET
from hf_bert_impl.errors import InputError, check_choice, one_line
from hf_bert_impl.extras import require
from hf_bert_impl.families import adapter
from hf_bert_impl.families.table import family_of, longest_sequence
from hf_bert_impl.finite import check_finite, check_numbers
from hf_bert_impl.in_place import is_bert
from hf_bert_impl.inference.batching import check_text
from hf_bert_impl.inference.joined_calls import JoinedCalls
from hf_bert_impl.inference.loading import (
    BareBert,
    UnusableTokenizer,
    find_device,
    load_encoder,
    loading_options,
    named_tokenizer,
    refuse_code,
)
from hf_bert_impl.inference.packed_loop import (
    Features,
    Row,
    TokenBudget,
    packable,
    packed,
    packed_features,
    rows_of,
    text_length,
    token_batches,
)
from hf_bert_impl.inference.sentence_folder import check_modules, read_modules
from hf_bert_impl.model.configuration_bert import BertConfig
from hf_bert_impl.model.linear import linear
from hf_bert_impl.model.steady import make_steady
from hf_bert_impl.optimization import optimize

require("sentence_transformers", "embed", "TextEncoder")

from sentence_transformers import SentenceTransformer  # noqa: E402
from sentence_transformers.base.modules import Dense  # noqa: E402
from sentence_transformers.sentence_transformer.modules import Pooling  # noqa: E402
from sentence_transformers.util import (  # noqa: E402
    batch_to_device,
    quantize_embeddings,
    truncate_embeddings,
)

#: Poolings: the mode of `Pooling`, and whether to average the first and last layer.
POOLINGS = {
    "cls": ("cls", False),
    "mean": ("mean", False),
    "max": ("max", False),
    "first-last-average": ("mean", True),
}
#: Activations whose bits do not depend on a number's place in a tensor.
STEADY = (nn.Identity, nn.Tanh, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.Hardtanh, nn.GELU)
_loading = threading.Lock()


class TextEncoder(SentenceTransformer):
    """A `SentenceTransformer` with a BERT of this package, prepared for inference.

    It skips padding, and tokenizes the next texts while the model computes. It adds the methods
    `encode_stream`, `encode_async` and `from_pretrained`. Vectors are float32 for any `dtype`.

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
        ValueError: The model is neither a BERT nor of a family that `optimize` supports, weights
            of the encoder are missing or not finite, or a setting is not supported.
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
        path = None if model_name_or_path is None else os.fspath(model_name_or_path)
        check_folder(path, {"subfolder": "checked below"})
        if path is not None:
            _check_files(path, options)
        options |= {"device": str(find_device(device)), "truncate_dim": truncate_dim}
        with _own_bert(), _explained(path):
            super().__init__(path, **options)
        if pooling is not None:
            self._pool_by(pooling)
        berts: list[Any] = [
            module for module in self.modules() if is_bert(module) or family_of(module) is not None
        ]
        if not berts:
            raise InputError(
                f"The modules of {path or 'this model'} hold no BERT. Load the model with "
                "SentenceTransformer."
            )
        bert, longest = berts[0], longest_sequence(berts[0].config)
        if max_length is not None:
            least = self.tokenizer.num_special_tokens_to_add() + 1
            check_length("max_length", max_length, least, longest)
        shortest = (max_length, self.max_seq_length, longest)
        self.max_seq_length = min(length for length in shortest if length is not None)
        saved = bert.dtype
        for each in berts if batch_invariant else ():
            each.config.batch_invariant = True
        self.float()  # optimize keeps this dtype of the results
        optimize(self, saved if dtype is None else dtype)
        if not prepare:
            for each in berts:
                adapter.drop(each)
                each.to(converted.get("dtype", saved))
        check_finite(self, path)  # a narrower type can make weights infinite
        if getattr(bert.config, "batch_invariant", False):
            self._keep_bits()
        self.eval()
        #: Number of tokens computed so far.
        self.tokens = 0
        self._joined = JoinedCalls(self._rows, self._vectors, TOKEN_BUDGET)

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
        bert: Any = self.transformers_model
        kernels = adapter.kernels_of(bert)
        return str(bert.dtype).removeprefix("torch.") if kernels is None else str(kernels)

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
        """
        if token_budget is not None:
            STEPS.check("token_budget", token_budget)
            options["batch_size"] = TokenBudget(token_budget)
        is_half = options.get("precision") == "float16"
        own = options | {"precision": "float32"} if is_half else options
        vectors = super().encode(*arguments, **own)
        if isinstance(vectors, np.ndarray | Tensor) and vectors.ndim == 1 and not len(vectors):
            return self._in_form(self._no_vectors(options.get("truncate_dim")), options)
        if is_half:
            vectors = _half(vectors)
        return vectors

    def encode_stream(
        self,
        texts: Iterable[str],
        *,
        batch_size: int | None = None,
        token_budget: int | None = None,
        normalize_embeddings: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate_dim: int | None = None,
        batches: bool = False,
    ) -> Generator[Tensor, None, None]:
        """Encodes a stream of any length in constant memory.

        Args:
            texts: Any iterable, read in the caller's thread, at most two chunks ahead.
            batch_size: This and the following are as in `encode`.
            token_budget: As in `encode`.
            normalize_embeddings: As in `encode`.
            prompt_name: As in `encode`.
            prompt: As in `encode`.
            truncate_dim: As in `encode`.
            batches: Yield the vectors of whole batches, (n, D).

        Returns:
            A generator of vectors (D,), in the order of the texts, on the model's device. Closing
            it early ends the tokenizer's thread.

        Raises:
            TypeError: `texts` is one text.
            ValueError: The prompt is unknown, or a size is below 1.
        """
        if isinstance(texts, str):
            raise TypeError("`texts` is one str. Give a list of texts, or call encode.")
        for name, value in (("batch_size", batch_size), ("token_budget", token_budget)):
            if value is not None:
                STEPS.check(name, value)
        size = batch_size or TokenBudget(TOKEN_BUDGET)
        if token_budget is not None:
            size = TokenBudget(token_budget)
        preprocess = functools.partial(
            packed_features, self, prompt=self._resolve_prompt(prompt, prompt_name)
        )
        encode: Any = functools.partial(
            super().encode,
            convert_to_tensor=True,
            normalize_embeddings=normalize_embeddings,
            truncate_dim=truncate_dim,
        )
        self.eval()

        def vectors() -> Generator[Tensor, None, None]:
            length = functools.partial(text_length, self)
            with contextlib.closing(token_batches(texts, preprocess, length, size)) as ahead:
                for batch in ahead:
                    if batches:
                        yield encode(batch)
                    else:
                        yield from encode(batch)

        # Checks are above, because a generator starts at its first step only.
        return vectors()

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
        return_tokens: bool = False,
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
            return_tokens: Return a pair of the vectors and the number of tokens.

        Returns:
            As `encode`; the same bits under `batch_invariant`.
        """
        given = [texts] if isinstance(texts, str) else list(texts)
        for index, text in enumerate(given):
            check_text(index, text)
        if truncate_dim is not None:
            COUNT.check("truncate_dim", truncate_dim)
        before = self._resolve_prompt(prompt, prompt_name) or ""
        length = self._prompt_length(before)

        def finish(vectors: list[Tensor]) -> Any:
            result = torch.stack(vectors) if vectors else self._no_vectors(None)
            dimension = truncate_dim if truncate_dim is not None else self.truncate_dim
            if dimension is not None:
                result = truncate_embeddings(result, dimension)
            if normalize_embeddings:
                result = nn.functional.normalize(result, dim=-1)
            form = {
                "precision": precision,
                "convert_to_numpy": convert_to_numpy,
                "convert_to_tensor": convert_to_tensor,
            }
            return self._in_form(result, form)

        rows, tokens = finish([]), 0
        if given:
            prompted = [before + text for text in given]
            rows, tokens = await self._joined.run(prompted, length, finish)
        result = rows[0] if isinstance(texts, str) else rows
        return (result, tokens) if return_tokens else result

    def _update_default_model_id(self, model_card: str) -> str:
        """Puts the model's id into its card."""
        placeholder = self._model_card_model_id_placeholder
        return model_card.replace(placeholder, self.model_card_data.model_id or placeholder)

    def _push_to_hub_usage_tip(self, repo_id: str) -> str:
        """The usage tip after a push, with a plain `SentenceTransformer`."""
        tip: str = super()._push_to_hub_usage_tip(repo_id)
        return tip.replace(type(self).__name__, SentenceTransformer.__name__)

    def _rows(self, texts: list[str]) -> list[Row]:
        """The tokens of texts; modules that need padding get batches of one text."""
        self.eval()  # in train mode features are padded
        features = packed_features(self, texts)
        if "cu_seq_lens_q" in features:
            return rows_of(features, len(texts))
        alone = [SentenceTransformer.preprocess(self, [text]) for text in texts]
        return [rows_of(features, 1)[0] for features in alone]

    @torch.inference_mode()
    def _vectors(self, rows: list[Row], prompt_length: int) -> Tensor:
        """(N, D) of a batch of rows."""
        if len(rows) > 1 and not rows[0].is_packed:
            return torch.cat([self._vectors([row], prompt_length) for row in rows])
        features = packed(rows)
        if prompt_length:
            features["prompt_length"] = prompt_length
        vectors: Tensor = self(batch_to_device(features, self.device))["sentence_embedding"]
        return vectors

    def _prompt_length(self, prompt: str) -> int:
        """Number of a prompt's tokens that the pooling excludes."""
        poolings = (module for module in self if isinstance(module, Pooling))
        if not prompt or all(pooling.include_prompt for pooling in poolings):
            return 0
        transformer: Any = self[0]
        return transformer._get_prompt_length(prompt) or 0

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

    def _keep_bits(self) -> None:
        """Makes the modules after BERT batch-invariant; InputError if one does not support it."""
        if not packable(self):
            raise InputError(
                "`batch_invariant` supports BERT, Pooling, Dense, LayerNorm and Normalize, and "
                "the model has other modules. Leave it out."
            )
        for module in self:
            if not isinstance(module, Dense):
                continue
            if not isinstance(module.activation_function, STEADY):
                raise InputError(
                    "`batch_invariant` supports Dense with "
                    f"{', '.join(kind.__name__ for kind in STEADY)}, and the model has "
                    f"{type(module.activation_function).__name__}. Leave it out."
                )
            vars(module)["forward"] = functools.partial(_steady_dense, module)


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


def _check_files(path: str, options: Mapping[str, Any]) -> None:
    """Raises early for damaged folders and for tokenizers with code."""
    names = {"revision": "revision", "token": "token", "cache_folder": "cache_dir"}
    place = {new: options[old] for old, new in names.items() if options.get(old) is not None}
    if options.get("local_files_only"):
        place["local_files_only"] = True
    if os.path.isdir(path):
        check_modules(path)
        place["subfolder"] = next(iter(read_modules(path) or [("", "")]))[1].strip("/")
    if not options.get("trust_remote_code"):
        refuse_code(path, named_tokenizer(path, place))


def _steady_dense(module: Any, features: Features) -> Features:
    """A batch-invariant `Dense.forward`."""
    make_steady(module)
    vectors = features[module.module_input_name]
    output = module.activation_function(linear(module.linear, vectors))
    if module.use_residual:
        is_same = module.in_features == module.out_features
        output = output + (vectors if is_same else linear(module.residual, vectors))
    features[module.module_output_name] = output
    return features


def _half(vectors: Any) -> Any:
    """The result of `encode` in float16."""
    if isinstance(vectors, np.ndarray):
        return vectors.astype(np.float16)
    return vectors.half() if isinstance(vectors, Tensor) else [vector.half() for vector in vectors]


@contextlib.contextmanager
def _own_bert() -> Iterator[None]:
    """Makes `AutoModel` load this package's BERTs and check the weights of this thread's models."""
    thread = threading.get_ident()
    with _loading, registered():
        load = AutoModel.from_pretrained

        def checked(*arguments: Any, **options: Any) -> Any:
            if threading.get_ident() != thread:
                return load(*arguments, **options)
            return load_encoder(load, *arguments, **options)

        table = AutoModel._model_mapping._extra_content
        before = vars(AutoModel)["from_pretrained"], table[BertConfig]
        AutoModel.from_pretrained = checked
        table[BertConfig] = BareBert
        try:
            yield
        finally:
            AutoModel.from_pretrained, table[BertConfig] = before


@contextlib.contextmanager
def _explained(path: str | None) -> Iterator[None]:
    """Turns errors of sentence-transformers about damaged files into `InputError`."""
    try:
        yield
    except (InputError, ImportError):
        raise
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise UnusableTokenizer(
                f"{path} has code of its own, which is not run. If you trust it, pass "
                "trust_remote_code=True to TextEncoder."
            ) from error
        if isinstance(error, ValueError | OSError):
            raise
        raise InputError(
            f"{path} could not be loaded ({type(error).__name__}: {one_line(error)[:200]}). "
            "Restore its files."
        ) from error
