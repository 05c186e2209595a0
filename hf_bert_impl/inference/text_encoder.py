"""Sentence vectors: BERT, a pooling, and what sentence-transformers puts after it.

Notation: N texts, T tokens of a batch side by side, D hidden size.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from tokenizers import Tokenizer, normalizers
from torch import Tensor, nn

from hf_bert_impl.checkpoint_files import check_folder
from hf_bert_impl.data.option_ranges import COUNT, check_length
from hf_bert_impl.errors import InputError
from hf_bert_impl.finite import check_finite
from hf_bert_impl.inference.encode_types import Device
from hf_bert_impl.inference.encoding import Encoding
from hf_bert_impl.inference.loading import find_device, load_bert, load_tokenizer, loading_options
from hf_bert_impl.inference.pooling import Dense, Pooling, check_steady
from hf_bert_impl.inference.sentence_folder import SentenceModel, read_sentence_model
from hf_bert_impl.inference.sentence_saving import save_sentence_model
from hf_bert_impl.inference.similarity import (
    Vectors,
    check_name,
    similarity,
    similarity_pairwise,
)
from hf_bert_impl.inference.vector_model import PythonTokenizer
from hf_bert_impl.model.kernels import prepared_kernels
from hf_bert_impl.model.modeling_bert import BertPreTrainedModel


class TextEncoder(Encoding):
    """Turns texts into vectors.

    Nothing is computed on padding, and the next texts are tokenized while the model works, so texts
    need no sorting and come as a list or as a stream without end. Methods and arguments have the
    names and the order that they have in sentence-transformers.

    Args:
        model: A BERT base model, on the device where it is to run. It is set to eval mode.
        tokenizer: Its tokenizer; what it has set about truncation and padding stays as it is.
        pooling: How the tokens of a text become one vector; see `pooling.MODES`.
        modules: What follows, applied in order to (N, width) vectors.
        max_length: Tokens, [CLS] and [SEP] among them, at which a text is cut; None for as many as
            tokenizer and model allow.
        do_lower_case: Lower-case texts before the tokenizer's own steps.
        prompts: Texts by name, one of which can be put before every text. "query" and "document"
            are there in any case, empty where they are not given.
        default_prompt_name: The prompt where a call names none.
        truncate_dim: How many of a vector's numbers to keep; None for all.
        similarity_fn_name: "cosine", "dot", "euclidean" or "manhattan"; None for cosine.

    Raises:
        ValueError: `max_length` is more than the model has positions for, or leaves no room for
            text; or there is no such prompt or similarity.
        TypeError: The model is not of this package.

    Examples:
        >>> encoder = TextEncoder.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")
        >>> vectors = encoder.encode(["A cat naps.", "A kitten sleeps."])
        >>> vectors.shape
        (2, 384)
        >>> encoder.similarity(vectors, vectors).shape
        torch.Size([2, 2])
    """

    def __init__(
        self,
        model: BertPreTrainedModel,
        tokenizer: Any,
        *,
        pooling: Pooling | str | Sequence[str] = "mean",
        modules: Iterable[nn.Module] = (),
        max_length: int | None = None,
        do_lower_case: bool = False,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        truncate_dim: int | None = None,
        similarity_fn_name: str | None = None,
    ) -> None:
        if not isinstance(model, BertPreTrainedModel):
            # With another class the texts of a batch would attend to each other unnoticed.
            raise TypeError(f"model is {type(model).__name__}; give an hf_bert_impl.BertModel")
        backend: Any = PythonTokenizer(tokenizer, do_lower_case)
        if tokenizer.is_fast:
            # A copy, because other users of the tokenizer may change its truncation.
            backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
            backend.no_padding()
            if do_lower_case:
                steps = [normalizers.Lowercase()]
                if backend.normalizer is not None:
                    steps.append(backend.normalizer)
                backend.normalizer = normalizers.Sequence(steps)
        super().__init__(
            model.eval(),
            tokenizer,
            backend,
            pooling if isinstance(pooling, Pooling) else Pooling(pooling),
            nn.Sequential(*modules).float().to(model.device).eval(),
        )
        if len(self.pooling.modules) and model.config.batch_invariant:
            raise InputError(
                "the model has modules of sentence-transformers before its pooling",
                "BERT, Pooling, Dense, LayerNorm and Normalize for `batch_invariant`",
                "leave it out",
            )
        self.pooling.modules.to(model.device)
        for module in self.modules:
            if isinstance(module, Dense) and model.config.batch_invariant:
                check_steady(module)
                module.batch_invariant = True
        self.prompts = {"query": "", "document": "", **_checked_prompts(prompts)}
        self.default_prompt_name = default_prompt_name
        if truncate_dim is not None:
            COUNT.check("truncate_dim", truncate_dim)
        self.truncate_dim = truncate_dim
        self.similarity_fn_name = similarity_fn_name  # None is cosine
        self._prompt(None, default_prompt_name)
        self.do_lower_case = do_lower_case
        if max_length is None:
            max_length = min(tokenizer.model_max_length, model.config.max_position_embeddings)
        self.max_seq_length = max_length

    @classmethod
    def from_pretrained(
        cls,
        path: str | os.PathLike[str],
        dtype: str | torch.dtype | None = None,
        device: Device | None = None,
        max_length: int | None = None,
        prepare: bool = True,
        pooling: Pooling | None = None,
        batch_invariant: bool = False,
        *,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        truncate_dim: int | None = None,
        similarity_fn_name: str | None = None,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        local_files_only: bool = False,
    ) -> Self:
        """Loads a sentence-transformers model, or a bare BERT, which gets mean pooling.

        Args:
            path: A folder or a hub id.
            dtype: "float32", "bfloat16", "float16", "int8", "auto", or a dtype of torch, as
                `prepare_for_inference` takes them; None for what the weights are saved in. Vectors
                are float32 all the same.
            device: None takes a GPU where there is one.
            max_length: Tokens at which a text is cut; None for what the model says.
            prepare: Pack the weights for the device's kernels (`prepare_for_inference`).
            pooling: A pooling in place of the model's own; the modules that follow that one are
                then left out.
            batch_invariant: Whether a text gets the same bits whatever texts come with it, in any
                order and with any `batch_size` or `token_budget` (`BertConfig.batch_invariant`). A
                call raises ValueError where that cannot be kept, on a GPU for example.
            prompts: Prompts by name, in place of the model's own of the same names.
            default_prompt_name: As above, in place of the model's own; so are the next two.
            truncate_dim: As above.
            similarity_fn_name: As above.
            revision: The branch, tag or commit on the hub.
            token: The hub's token for what is not public, or whether to send the saved one.
            cache_dir: Where files of the hub are kept; None for the usual folder.
            local_files_only: Ask no network; what is not there is an error.

        Returns:
            The encoder.

        Raises:
            ValueError: Not a BERT, weights are missing or not finite, or a module or dtype is not
                supported.
            OSError: No such folder or model, or its files are missing.
        """
        # All that can be checked before anything is read.
        loading_options(dtype, prepare)
        where = find_device(device)
        own_prompts = _checked_prompts(prompts)
        if similarity_fn_name is not None:
            check_name(similarity_fn_name)
        if truncate_dim is not None:
            COUNT.check("truncate_dim", truncate_dim)
        path = os.fspath(path)
        check_folder(path, {"subfolder": "looked at below"})
        hub = {"revision": revision, "token": token, "cache_dir": cache_dir}
        place: dict[str, Any] = {name: value for name, value in hub.items() if value is not None}
        if local_files_only:
            place["local_files_only"] = True
        saved = read_sentence_model(path, place)
        folder = path
        if os.path.isdir(path):
            folder = os.path.join(path, saved.subfolder) if saved.subfolder else path
        elif saved.subfolder:
            place["subfolder"] = saved.subfolder
        model = load_bert(
            folder, place, dtype, where, prepare=prepare, batch_invariant=batch_invariant
        )
        for module in (saved.pooling.modules, *saved.modules):
            check_finite(module, path)
        if max_length is None and saved.max_length is not None:
            max_length = min(saved.max_length, model.config.max_position_embeddings)
        return cls(
            model,
            load_tokenizer(folder, place),
            pooling=pooling or saved.pooling,
            modules=[] if pooling else saved.modules,
            max_length=max_length,
            do_lower_case=saved.do_lower_case,
            prompts=saved.prompts | own_prompts,
            default_prompt_name=default_prompt_name or saved.default_prompt_name,
            truncate_dim=saved.truncate_dim if truncate_dim is None else truncate_dim,
            similarity_fn_name=similarity_fn_name or saved.similarity_fn_name,
        )

    def save_pretrained(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Saves everything as a folder that sentence-transformers and `from_pretrained` load.

        The weights are those of the model: what `prepare_for_inference` packed is packed again
        where the folder is loaded. BERT's pooler, which no vector needs, is not among them where
        `from_pretrained` left it out; transformers then says that it is missing.

        Args:
            path: A new or an empty folder; it appears when it is complete.
            overwrite: Replace a folder with files in it.

        Raises:
            ValueError: The folder has files or cannot be written, or sentence-transformers has
                nothing that would give the same vectors.
        """
        described = SentenceModel(
            pooling=self.pooling,
            modules=list(self.modules),
            max_length=self.max_seq_length,
            do_lower_case=self.do_lower_case,
            prompts=self.prompts,
            default_prompt_name=self.default_prompt_name,
            truncate_dim=self.truncate_dim,
            similarity_fn_name=self.similarity_fn_name,
        )
        save_sentence_model(Path(path), self.model, self.tokenizer, described, overwrite)

    @property
    def precision(self) -> str:
        """What the model computes in, and by which kernels where it is prepared."""
        kernels = prepared_kernels(self.model)
        if kernels is None:
            return str(self.model.dtype).removeprefix("torch.")
        return str(kernels)

    @property
    def dimension(self) -> int:
        """How many numbers a vector has."""
        return self._dimension(None)

    def get_embedding_dimension(self) -> int:
        """`dimension`, by its name in sentence-transformers."""
        return self.dimension

    #: The same by the name that it had there before.
    get_sentence_embedding_dimension = get_embedding_dimension

    @property
    def max_seq_length(self) -> int:
        """Tokens, [CLS] and [SEP] among them, at which a text is cut. It can be set.

        Raises:
            ValueError: The model has fewer positions, or there is no room for text.
        """
        options: Any = self._backend.truncation
        length: int = options["max_length"]
        return length

    @max_seq_length.setter
    def max_seq_length(self, length: int) -> None:
        limit = int(self.model.config.max_position_embeddings)
        shortest = self.tokenizer.num_special_tokens_to_add() + 1
        check_length("max_length", length, shortest, limit)
        self._backend.enable_truncation(length, direction=self.tokenizer.truncation_side)

    #: The same by the name of the argument.
    max_length = max_seq_length

    @property
    def similarity_fn_name(self) -> str:
        """What `similarity` computes: "cosine", "dot", "euclidean" or "manhattan". It can be set.

        Raises:
            ValueError: There is no such function.
        """
        return self._similarity_fn_name

    @similarity_fn_name.setter
    def similarity_fn_name(self, name: Any) -> None:
        self._similarity_fn_name = "cosine" if name is None else check_name(name)

    def similarity(self, embeddings1: Vectors, embeddings2: Vectors) -> Tensor:
        """Compares each of some vectors with each of others, as `similarity_fn_name` says.

        Args:
            embeddings1: (M, D), or (D,) for one vector, in any form and precision.
            embeddings2: (N, D), or (D,).

        Returns:
            (M, N); larger is nearer, so that distances are negative.

        Raises:
            ValueError: The vectors have different sizes.
        """
        return similarity(self.similarity_fn_name, embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Vectors, embeddings2: Vectors) -> Tensor:
        """Compares vectors side by side: the first with the first, and so on.

        Args:
            embeddings1: (N, D), or (D,) for one vector, in any form and precision.
            embeddings2: The same.

        Returns:
            (N,), or a single number for two vectors.

        Raises:
            ValueError: The vectors have different sizes, or there are other numbers of them.
        """
        return similarity_pairwise(self.similarity_fn_name, embeddings1, embeddings2)

    def __repr__(self) -> str:
        config = self.model.config
        parts = [type(module).__name__ for module in self.pooling.modules] or [*self.pooling.modes]
        parts += [type(module).__name__ for module in self.modules]
        return (
            f"{type(self).__name__}({self.model.name_or_path or 'BERT'}: "
            f"{config.num_hidden_layers} layers of {config.hidden_size}, {' + '.join(parts)}, "
            f"{self.dimension} numbers, texts of up to {self.max_seq_length} tokens, "
            f"{self.precision} on {self.device})"
        )


def _checked_prompts(prompts: Any) -> dict[str, str]:
    if not isinstance(prompts, Mapping | None) or not all(
        isinstance(text, str) for pair in (prompts or {}).items() for text in pair
    ):
        raise InputError(
            f"prompts is {prompts!r:.60}", "texts by name: {'query': 'query: '}", "write them so"
        )
    return dict(prompts or {})
