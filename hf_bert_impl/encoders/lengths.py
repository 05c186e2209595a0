"""The longest sequence of an encoder, by its config; without imports, for the command line."""

from typing import Any

#: Architectures whose positions begin behind the pad token's.
_COUNTING = {
    *("roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "camembert"),
    *("data2vec-text", "mpnet", "xmod"),
}


def longest_sequence(config: Any) -> int:
    """Maximum number of tokens of a BERT or of another encoder, by its positions."""
    rows = int(config.max_position_embeddings)
    if config.model_type not in _COUNTING:
        return rows
    return rows - 1 - (1 if config.model_type == "mpnet" else int(config.pad_token_id))
