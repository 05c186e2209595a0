"""BERT in one file: model, pre-training tasks and training loop, as lesson 4 builds them.

After Devlin et al. (2019). Parameters have the names of published checkpoints, so that these load.
In shapes B is the batch, S the sequence, H the hidden size, A the heads, V the vocabulary.
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

Documents = list[list[list[int]]]  # documents, their sentences, token numbers
Pair = tuple[list[int], list[int], bool]  # two sentences; whether the second is random
Batch = dict[str, Tensor]


@dataclass
class Config:
    """Sizes of a model, named as in config.json. The defaults make BERT-base."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12


class Embeddings(nn.Module):
    """The sum of a token's, a position's and a segment's vector, normalised."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        size = config.hidden_size
        # [PAD] has number 0 in every BERT; its vector gets no gradient as an input.
        self.word_embeddings = nn.Embedding(config.vocab_size, size, padding_idx=0)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, size)
        self.LayerNorm = nn.LayerNorm(size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, ids: Tensor, segments: Tensor) -> Tensor:
        """(B, S) of each to (B, S, H)."""
        positions = self.position_embeddings.weight[: ids.shape[1]]  # (S, H)
        total = self.word_embeddings(ids) + positions + self.token_type_embeddings(segments)
        return self.dropout(self.LayerNorm(total))


class SelfAttention(nn.Module):
    """Scaled dot-product attention in several heads (Vaswani et al., 2017, section 3.2)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        size = config.hidden_size
        self.heads = config.num_attention_heads
        self.query, self.key, self.value = (nn.Linear(size, size) for _ in range(3))
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)

    def forward(self, states: Tensor, is_real: Tensor) -> Tensor:
        """(B, S, H) and booleans (B, 1, 1, S) to (B, S, H)."""
        query, key, value = (
            linear(states).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, A, S, H / A)
            for linear in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])  # (B, A, S, S)
        weights = scores.masked_fill(~is_real, torch.finfo(scores.dtype).min).softmax(dim=-1)
        return (self.dropout(weights) @ value).transpose(1, 2).flatten(2)


class Output(nn.Module):
    """A linear layer, a residual connection and a LayerNorm."""

    def __init__(self, config: Config, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, inner: Tensor, states: Tensor) -> Tensor:
        return self.LayerNorm(self.dropout(self.dense(inner)) + states)


class Dense(nn.Module):
    """A linear layer and an activation function."""

    def __init__(self, width: int, size: int, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.dense = nn.Linear(width, size)
        self.activation = activation

    def forward(self, states: Tensor) -> Tensor:
        return self.activation(self.dense(states))


class Layer(nn.Module):
    """Attention mixes the tokens; the feed-forward network transforms each by itself."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention = nn.ModuleDict(
            {"self": SelfAttention(config), "output": Output(config, config.hidden_size)}
        )
        self.intermediate = Dense(config.hidden_size, config.intermediate_size, functional.gelu)
        self.output = Output(config, config.intermediate_size)

    def forward(self, states: Tensor, is_real: Tensor) -> Tensor:
        mixed = self.attention["self"](states, is_real)
        states = self.attention["output"](mixed, states)
        return self.output(self.intermediate(states), states)


class Encoder(nn.Module):
    """A stack of layers."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))

    def forward(self, states: Tensor, is_real: Tensor) -> Tensor:
        for layer in self.layer:
            states = layer(states, is_real)
        return states


class Bert(nn.Module):
    """The body: token numbers in, a vector per token and one per text out."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(config)
        self.pooler = Dense(config.hidden_size, config.hidden_size, torch.tanh)

    def forward(self, ids: Tensor, mask: Tensor, segments: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S) of each to (B, S, H) and, from the state of [CLS], (B, H)."""
        states = self.encoder(self.embeddings(ids, segments), mask.bool()[:, None, None])
        return states, self.pooler(states[:, 0])


def load(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Loads a checkpoint, which may hold a tied tensor under one of its names.

    Raises:
        ValueError: The names differ from the model's.
    """
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    missing = [name for name in missing if ".decoder." not in name]
    unexpected = [name for name in unexpected if not name.endswith("position_ids")]
    if missing or unexpected:
        raise ValueError(f"Missing from the checkpoint: {missing}. Unknown: {unexpected}.")


class Transform(Dense):
    """A layer for each state, before it is compared with the token vectors."""

    def __init__(self, config: Config) -> None:
        super().__init__(config.hidden_size, config.hidden_size, functional.gelu)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, states: Tensor) -> Tensor:
        return self.LayerNorm(super().forward(states))


class Predictions(nn.Module):
    """The masked-LM head. Its decoder is the table of token vectors."""

    def __init__(self, config: Config, vectors: nn.Embedding) -> None:
        super().__init__()
        self.transform = Transform(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.decoder.weight = vectors.weight
        self.bias = self.decoder.bias  # checkpoints have both names

    def forward(self, states: Tensor) -> Tensor:
        """(B, S, H) to (B, S, V)."""
        return self.decoder(self.transform(states))


class Heads(nn.Module):
    """The masked-LM head and the next-sentence head."""

    def __init__(self, config: Config, vectors: nn.Embedding) -> None:
        super().__init__()
        self.predictions = Predictions(config, vectors)
        self.seq_relationship = nn.Linear(config.hidden_size, 2)


class BertForPreTraining(nn.Module):
    """BERT with both heads; their losses are added."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.bert = Bert(config)
        self.cls = Heads(config, self.bert.embeddings.word_embeddings)
        self.apply(self.initialise)

    def initialise(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    def forward(self, ids: Tensor, mask: Tensor, segments: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S) of each to (B, S, V) and (B, 2). Class 0 means that the second text follows."""
        states, pooled = self.bert(ids, mask, segments)
        return self.cls.predictions(states), self.cls.seq_relationship(pooled)

    def loss(self, batch: Batch) -> Tensor:
        """The sum of both cross-entropies in nats, over labels other than -100."""
        words, follows = self(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"])
        masked_lm = functional.cross_entropy(words.flatten(0, 1), batch["labels"].flatten())
        return masked_lm + functional.cross_entropy(follows, batch["next_sentence_label"])


@dataclass
class Special:
    """The numbers of the tokens that are not words."""

    pad: int
    cls: int
    sep: int
    mask: int


def mask_tokens(ids: Tensor, special: Special, vocab_size: int) -> tuple[Tensor, Tensor]:
    """Chooses 15 % of the tokens: 80 % become [MASK], 10 % a random token, 10 % stay.

    Returns:
        Inputs and labels, of the shape of `ids`. Tokens that are not chosen have label -100.
    """
    is_word = ~torch.isin(ids, torch.tensor([special.pad, special.cls, special.sep]))
    chosen = (torch.rand(ids.shape) < 0.15) & is_word
    fate = torch.rand(ids.shape)
    inputs = ids.masked_fill(chosen & (fate < 0.8), special.mask)
    inputs = torch.where(chosen & (fate >= 0.9), torch.randint_like(ids, vocab_size), inputs)
    return inputs, ids.masked_fill(~chosen, -100)


def sentence_pairs(documents: Documents, draw: random.Random) -> Iterator[Pair]:
    """Pairs each sentence with the next one, or, as often, with one of another document.

    Args:
        documents: Two or more lists of sentences; a sentence is a list of token numbers.
        draw: The random generator.
    """
    for number, document in enumerate(documents):
        for first, second in pairwise(document):
            if is_random := draw.random() < 0.5:
                other = draw.randrange(len(documents) - 1)
                second = draw.choice(documents[other + (other >= number)])
            yield first, second, is_random


def make_batch(pairs: list[Pair], special: Special, longest: int = 128) -> Batch:
    """[CLS] first [SEP] second [SEP] of each pair, padded to the longest."""
    rows, segments = [], []
    pad = nn.utils.rnn.pad_sequence
    for first, second, _ in pairs:
        first, second = list(first), list(second)
        while len(first) + len(second) > longest - 3:
            max(first, second, key=len).pop()
        rows.append(torch.tensor([special.cls, *first, special.sep, *second, special.sep]))
        segments.append(torch.tensor([0] * (len(first) + 2) + [1] * (len(second) + 1)))
    ids = pad(rows, batch_first=True, padding_value=special.pad)
    return {
        "input_ids": ids,
        "attention_mask": ids != special.pad,
        "token_type_ids": pad(segments, batch_first=True),
        "next_sentence_label": torch.tensor([int(is_random) for _, _, is_random in pairs]),
    }


def batches(documents: Documents, special: Special, vocab: int, size: int) -> Iterator[Batch]:
    """Yields shuffled batches without end. Each epoch has new pairs and new masks."""
    draw = random.Random(0)
    pairs: list[Pair] = []
    while True:
        while len(pairs) < size:
            pairs += sentence_pairs(documents, draw)
            draw.shuffle(pairs)
        batch = make_batch([pairs.pop() for _ in range(size)], special)
        ids, labels = mask_tokens(batch["input_ids"], special, vocab)
        yield batch | {"input_ids": ids, "labels": labels}


def train(model: BertForPreTraining, data: Iterator[Batch], steps: int, peak: float) -> list[float]:
    """Trains a model and returns the loss of each step.

    The learning rate rises to `peak` within the first tenth of the steps, then falls to zero.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, weight_decay=0.01)
    losses = []
    model.train()
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = peak * min(10 * (step + 1) / steps, 1 - step / steps)
        optimizer.zero_grad()
        loss = model.loss(next(data))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses
