"""Sentence vectors: BERT, a pooling, and what sentence-transformers puts after it.

Notation: N texts, T tokens of a batch side by side, D hidden size.
"""

import contextlib
import os
from collections.abc import Generator, Iterable, Sequence
from itertools import accumulate
from typing import Any, cast

import torch
from tokenizers import Tokenizer, normalizers
from torch import Tensor, nn
from transformers import AutoTokenizer
from transformers.models.auto.tokenization_auto import (
    get_tokenizer_config,
    tokenizer_class_from_name,
)

from hf_bert_impl.data.option_ranges import COUNT, STEPS, check_length
from hf_bert_impl.errors import InputError, check_choice
from hf_bert_impl.inference.batching import Ids, token_batches
from hf_bert_impl.inference.pooling import Dense, Pooling, check_steady
from hf_bert_impl.inference.progress import text_progress
from hf_bert_impl.inference.sentence_folder import read_sentence_model
from hf_bert_impl.model.configuration_bert import BertConfig
from hf_bert_impl.model.cpu_kernels import DTYPES as FLOAT_DTYPES
from hf_bert_impl.model.json_files import explained
from hf_bert_impl.model.loading import check_finite, check_folder, check_tokenizer
from hf_bert_impl.model.modeling_bert import BertModel, BertPreTrainedModel
from hf_bert_impl.model.tokenization_bert import BertTokenizer

#: Tokens a batch where the caller says nothing.
TOKEN_BUDGET = 4096
#: What `dtype` may be called, and the type of the weights without preparing.
DTYPES = {**FLOAT_DTYPES, "int8": torch.float32, "auto": torch.float32}
#: The names of `DTYPES` that only a prepared model can have.
PREPARED_DTYPES = ("int8", "auto")


class _SentenceBert(BertModel):
    """BERT without its pooler. A checkpoint's weights of other heads cause no warning."""

    _keys_to_ignore_on_load_unexpected = [  # noqa: RUF012 (transformers' own form)
        r"embeddings\.position_ids$",
        r"(^|\.)pooler\.",
        r"^(cls|classifier|qa_outputs)\.",
    ]

    def __init__(self, config: Any) -> None:
        super().__init__(config, add_pooling_layer=False)


class TextEncoder:
    """Turns texts into vectors.

    Nothing is computed on padding, and the next texts are tokenized while the model works, so texts
    need no sorting and come as a list or as a stream without end.

    Args:
        model: A BERT base model, on the device where it is to run. It is set to eval mode.
        tokenizer: Its tokenizer; what it has set about truncation and padding stays as it is.
        pooling: How the tokens of a text become one vector; see `pooling.MODES`.
        modules: What follows, applied in order to (N, width) vectors.
        max_length: Tokens, [CLS] and [SEP] among them, at which a text is cut; None for as many as
            tokenizer and model allow.
        do_lower_case: Lower-case texts before the tokenizer's own steps.
        prompts: Texts by name, one of which can be put before every text.
        default_prompt_name: The prompt where a call names none.
        truncate_dim: How many of a vector's numbers to keep; None for all.

    Raises:
        ValueError: `max_length` is more than the model has positions for, or leaves no room for
            text; or there is no such prompt.
        TypeError: The model is not of this package.

    Example:
        >>> encoder = TextEncoder.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")
        >>> encoder.encode(["A cat naps.", "A kitten sleeps."]).shape
        (2, 384)
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
        prompts: dict[str, str] | None = None,
        default_prompt_name: str | None = None,
        truncate_dim: int | None = None,
    ) -> None:
        if not isinstance(model, BertPreTrainedModel):
            # With another class the texts of a batch would attend to each other unnoticed.
            raise TypeError(f"model is {type(model).__name__}; give an hf_bert_impl.BertModel")
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.pooling = pooling if isinstance(pooling, Pooling) else Pooling(pooling)
        self.modules = nn.Sequential(*modules).float().to(self.device).eval()
        for module in self.modules:
            if isinstance(module, Dense) and model.config.batch_invariant:
                check_steady(module)
                module.batch_invariant = True
        self.prompts = dict(prompts or {})
        self.default_prompt_name = default_prompt_name
        if truncate_dim is not None:
            COUNT.check("truncate_dim", truncate_dim)
        self.truncate_dim = truncate_dim
        self._prompt(None, default_prompt_name)

        limit = int(model.config.max_position_embeddings)
        if max_length is None:
            max_length = min(tokenizer.model_max_length, limit)
        shortest = tokenizer.num_special_tokens_to_add() + 1
        check_length("max_length", max_length, shortest, limit)
        self.max_length = max_length
        # A copy, because other users of the tokenizer may change its truncation.
        self._backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._backend.no_padding()
        self._backend.enable_truncation(max_length, direction=tokenizer.truncation_side)
        if do_lower_case:
            steps = [normalizers.Lowercase()]
            if self._backend.normalizer is not None:
                steps.append(self._backend.normalizer)
            self._backend.normalizer = normalizers.Sequence(steps)

    @classmethod
    def from_pretrained(
        cls,
        path: str | os.PathLike[str],
        dtype: str | torch.dtype | None = None,
        device: str | torch.device | None = None,
        max_length: int | None = None,
        prepare: bool = True,
        pooling: Pooling | None = None,
        batch_invariant: bool = False,
    ) -> "TextEncoder":
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

        Returns:
            The encoder.

        Raises:
            ValueError: Not a BERT, weights are missing or not finite, or a module or dtype is not
                supported.
            OSError: No such folder or model, or its files are missing.
        """
        options = loading_options(dtype, prepare)
        path = os.fspath(path)
        check_folder(path, {"subfolder": "looked at below"})
        saved = read_sentence_model(path)
        place = {"subfolder": saved.subfolder} if saved.subfolder else {}
        if os.path.isdir(path) and saved.subfolder:
            path, place = os.path.join(path, saved.subfolder), {}
        kind = BertConfig.get_config_dict(path, **place)[0].get("model_type", "bert")
        if kind not in ("bert", "hf_bert_impl"):
            raise InputError(
                f"{path} has model_type {kind!r}", "a BERT (model_type 'bert')", "name another one"
            )
        model, info = _SentenceBert.from_pretrained(
            path, output_loading_info=True, **place, **options
        )
        if info["missing_keys"]:
            missing = sorted(info["missing_keys"])
            raise InputError(
                f"{path} lacks {len(missing)} of BERT's weights ({', '.join(missing[:2])}, ...)",
                "all of them",
                "restore its weights, or name another checkpoint",
            )
        model = model.to(_device(device)).eval()
        if batch_invariant:
            model.config.batch_invariant = True
        if prepare:
            model = model.prepare_for_inference(dtype)
        for part in (model, *saved.modules):  # a narrower type can make weights infinite
            check_finite(part, path)
        if max_length is None and saved.max_length is not None:
            max_length = min(saved.max_length, model.config.max_position_embeddings)
        return cls(
            model,
            load_tokenizer(path, place),
            pooling=pooling or saved.pooling,
            modules=[] if pooling else saved.modules,
            max_length=max_length,
            do_lower_case=saved.do_lower_case,
            prompts=saved.prompts,
            default_prompt_name=saved.default_prompt_name,
            truncate_dim=saved.truncate_dim,
        )

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = self.model.device
        return device

    @property
    def precision(self) -> str:
        """What the model computes in, and by which kernels where it is prepared."""
        prepared = self.model.encoder.prepared
        if prepared is None:
            return str(self.model.dtype).removeprefix("torch.")
        return str(prepared.kernels)

    @property
    def dimension(self) -> int:
        """How many numbers a vector has."""
        size = self.model.config.hidden_size * len(self.pooling.modes)
        for module in self.modules:
            if isinstance(module, Dense):
                size = module.linear.out_features
        return min(size, self.truncate_dim or size)

    def encode(
        self,
        texts: str | Sequence[str],
        *,
        batch_size: int | None = None,
        token_budget: int | None = None,
        normalize_embeddings: bool = False,
        convert_to_tensor: bool = False,
        convert_to_numpy: bool = True,
        show_progress_bar: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
    ) -> Any:
        """Encodes one text or many.

        Args:
            texts: A text, or a sequence of texts. Longer ones than `max_length` are cut; an empty
                one is just [CLS] and [SEP].
            batch_size: Most texts that the model gets at once.
            token_budget: Most tokens that it gets at once; `TOKEN_BUDGET` if `batch_size` is not
                given either. It costs memory and changes no vector.
            normalize_embeddings: Make vectors of length 1.
            convert_to_tensor: Return a tensor on the model's device.
            convert_to_numpy: Return a numpy array; if False, a list of tensors.
            show_progress_bar: Show a bar on standard error.
            prompt_name: Which of `prompts` to put before each text.
            prompt: The text to put before each text; goes before `prompt_name`.

        Returns:
            (N, dimension) in the order of the texts, or (dimension,) for a single text; float32.

        Raises:
            TypeError: An entry is no str.
            ValueError: There is no such prompt, a size is below 1, or `len(texts)` is not the
                number of texts.
        """
        if not isinstance(texts, str) and not hasattr(texts, "__len__"):
            raise TypeError(
                f"texts is {type(texts).__name__}; give a str or a sequence, and an iterator to "
                "encode_stream"
            )
        single = isinstance(texts, str)
        given = [cast(str, texts)] if single else texts
        batches = self.encode_stream(
            given,
            batch_size=batch_size,
            token_budget=token_budget,
            normalize_embeddings=normalize_embeddings,
            prompt_name=prompt_name,
            prompt=prompt,
            batches=True,
        )
        device = self.device if convert_to_tensor else "cpu"
        vectors = torch.empty(len(given), self.dimension, device=device)
        row = 0
        with text_progress(show_progress_bar, len(vectors)) as advance:
            for batch in batches:
                row += len(batch)
                if row > len(vectors):
                    break
                vectors[row - len(batch) : row] = batch
                advance(len(batch))
        batches.close()
        if row != len(vectors):  # rows that are not written hold arbitrary numbers
            raise InputError(
                f"texts gave {'more' if row > len(vectors) else row} texts",
                f"{len(vectors)}, which is len(texts)",
                "give a sequence that is as long as it says, or call encode_stream",
            )
        if convert_to_tensor:
            result: Any = vectors
        else:
            result = vectors.numpy() if convert_to_numpy else list(vectors)
        return result[0] if single else result

    def encode_stream(
        self,
        texts: Iterable[str],
        *,
        batch_size: int | None = None,
        token_budget: int | None = None,
        normalize_embeddings: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batches: bool = False,
    ) -> Generator[Tensor, None, None]:
        """Encodes a stream of any length in constant memory.

        Args:
            texts: Any iterable; it is read in the caller's thread, at most two chunks of a few
                hundred texts ahead.
            batch_size: As in `encode`.
            token_budget: As in `encode`.
            normalize_embeddings: As in `encode`.
            prompt_name: As in `encode`.
            prompt: As in `encode`.
            batches: Yield what the model gave at once, (n, dimension), in place of single vectors.

        Returns:
            A generator of vectors (dimension,), in the order of the texts, on the model's device.
            Closing it early ends the tokenizer's thread.

        Raises:
            TypeError: An entry is no str.
            ValueError: There is no such prompt, or a size is below 1.
        """
        for name, value in (("batch_size", batch_size), ("token_budget", token_budget)):
            if value is not None:
                STEPS.check(name, value)
        if batch_size is None and token_budget is None:
            token_budget = TOKEN_BUDGET
        if isinstance(texts, str):
            raise TypeError("texts is one str; give an iterable of texts, or call encode")
        before = self._prompt(prompt, prompt_name)
        prompt_length = self._prompt_length(before)

        def tokenize(chunk: list[str]) -> list[Ids]:
            return self._tokenize([before + text for text in chunk] if before else chunk)

        def vectors() -> Generator[Tensor, None, None]:
            ahead = token_batches(texts, tokenize, token_budget=token_budget, batch_size=batch_size)
            with contextlib.closing(ahead):
                for batch in ahead:
                    # A copy, because nobody can train on a tensor of inference mode.
                    rows = self._vectors(batch, prompt_length, normalize_embeddings).clone()
                    yield from [rows] if batches else rows

        # A generator checks nothing before its first step, so everything was checked above.
        return vectors()

    @torch.inference_mode()
    def _vectors(self, batch: list[Ids], prompt_length: int, normalize: bool) -> Tensor:
        """(N, dimension) float32 of N tokenized texts."""
        # The lengths stay on the CPU, where they are read.
        lengths = torch.tensor([len(ids) for ids in batch], device="cpu")  # (N,)
        ends = torch.tensor([0, *accumulate(map(len, batch))], dtype=torch.int32, device="cpu")
        ids = torch.tensor([[n for row in batch for n in row]], device=self.device)  # (1, T)
        # Already packed input, as DataCollatorWithFlattening makes it: no padding anywhere.
        layers = [1] if self.pooling.first_and_last else False
        output = self.model(
            input_ids=ids, cu_seq_lens_q=ends, output_hidden_states=layers, return_dict=True
        )
        states = output.last_hidden_state[0]  # (T, D)
        if layers:
            states = (states.float() + output.hidden_states[1][0].float()) / 2
        vectors = self.modules(self.pooling(states, lengths, prompt_length))
        if self.truncate_dim is not None:
            vectors = vectors[:, : self.truncate_dim]
        return nn.functional.normalize(vectors, dim=-1) if normalize else vectors

    def _tokenize(self, texts: list[str]) -> list[Ids]:
        return [encoding.ids for encoding in self._backend.encode_batch_fast(texts)]

    def _prompt(self, prompt: str | None, name: str | None) -> str:
        """The prompt of a call: its text, or an empty one."""
        if prompt is not None:
            return prompt
        name = self.default_prompt_name if name is None else name
        if name is not None and name not in self.prompts:
            known = ", ".join(map(repr, self.prompts)) or "none"
            raise InputError(
                f"there is no prompt {name!r}", f"one that this model has ({known})", "choose one"
            )
        return self.prompts[name] if name is not None else ""

    def _prompt_length(self, prompt: str) -> int:
        """Tokens of a prompt, [CLS] among them."""
        if not prompt:
            return 0
        ids = self._tokenize([prompt])[0]
        return len(ids) - (ids[-1] in self.tokenizer.all_special_ids)


def loading_options(dtype: str | torch.dtype | None, prepare: bool) -> dict[str, torch.dtype]:
    """What `from_pretrained` needs for a precision.

    That is nothing where the model is prepared: preparing converts, and to what this CPU computes.

    Args:
        dtype: One of `DTYPES`, by name or not; None for what the weights are saved in.
        prepare: Whether the model is prepared after it was loaded.

    Raises:
        ValueError: An unknown dtype, or one that only a prepared model has.
    """
    if dtype is None:
        return {}
    if dtype not in DTYPES.values():
        check_choice("dtype", dtype, DTYPES)
    if prepare:
        return {}
    if dtype in PREPARED_DTYPES:
        raise InputError(
            f"dtype={dtype!r} is made by preparing the model",
            "a dtype of weights",
            "leave prepare=True",
        )
    return {"dtype": DTYPES[dtype] if isinstance(dtype, str) else dtype}


def _device(device: str | torch.device | None) -> torch.device:
    if device is not None:
        return torch.device(device)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def load_tokenizer(path: str, place: dict[str, str]) -> Any:
    """This package's tokenizer, or transformers' where the vocabulary is not BERT's own.

    Some BERTs, multilingual-e5 for one, have another model's sentencepiece, and those of
    codertimo/BERT-pytorch have words. Code that a checkpoint brings along is not run.

    Args:
        path: A folder or a hub id.
        place: `revision`, `subfolder` and the like for `from_pretrained`.

    Raises:
        ValueError, OSError: The tokenizer's class is in the checkpoint's own code, or its files are
            damaged or missing.
    """
    with explained(check_tokenizer, path, place):
        return _load_tokenizer(path, place)


def _load_tokenizer(path: str, place: dict[str, str]) -> Any:
    settings = get_tokenizer_config(path, **place)
    kind = settings.get("tokenizer_class")
    if kind in (None, "BertTokenizer", "BertTokenizerFast"):
        return BertTokenizer.from_pretrained(path, **place)
    if "auto_map" in settings and tokenizer_class_from_name(kind) is None:
        # transformers might put a plain tokenizer in its place, with other ids.
        raise InputError(
            f"the tokenizer of {path}, {kind}, is code of its own, which is not run",
            "one of BERT's or transformers' own",
            "if you trust the code, load it by AutoTokenizer with trust_remote_code=True, for "
            "TextEncoder(model, tokenizer)",
        )
    config = BertConfig.from_pretrained(path, **place)  # this class checks its limits
    try:
        # Without the argument transformers would ask on standard input, which holds the texts.
        return AutoTokenizer.from_pretrained(path, config=config, trust_remote_code=False, **place)
    except OSError:
        raise
    # A class that does not fit the files may raise anything.
    except Exception as error:
        raise InputError(
            f"the tokenizer of {path}, {kind}, cannot be loaded ({' '.join(str(error).split())})",
            "the files of that class",
            "copy them again, or mend tokenizer_class in its tokenizer_config.json",
        ) from error
