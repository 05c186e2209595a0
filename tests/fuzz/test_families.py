"""Random models of every family, compared with transformers; see `test_differential.py`."""

import copy
import pickle
import random
from typing import Any

import pytest
import torch
from torch import nn

import hf_bert_impl
from tests.encoders.cases import (
    CLASSES,
    attended,
    differences,
    layers_of,
    linear_layers,
    new_linear,
    random_batch,
    random_labels,
    step,
)
from tests.encoders.cases import random_stock as stock_of
from tests.fuzz.changes import Doubled
from tests.fuzz.test_differential import SEED, TRIALS

TOLERANCE = 2e-4


def subclass(model: Any, rng: random.Random) -> None:
    module, name = rng.choice(linear_layers(model))
    getattr(module, name).__class__ = Doubled


def hook(model: Any, rng: random.Random) -> None:
    module, name = rng.choice(linear_layers(model))
    getattr(module, name).register_forward_hook(lambda m, i, output: 2 * output)


def swapped(model: Any, rng: random.Random) -> None:
    first, second = rng.choices(linear_layers(model), k=2)
    weights = [getattr(*place).weight for place in (first, second)]
    if weights[0].shape == weights[1].shape:
        weights[0].data, weights[1].data = weights[1].data, weights[0].data


def other_table(model: Any, rng: random.Random) -> None:
    words = model.get_input_embeddings()
    new = nn.Embedding(*words.weight.shape, padding_idx=words.padding_idx)
    new.weight.data = words.weight.data.flip(1).clone()
    model.set_input_embeddings(new)


#: Done to both models, with equal random numbers.
CHANGES = {
    "a subclass of Linear": subclass,
    "a new Linear": new_linear,
    "a hook": hook,
    "weights swapped": swapped,
    "all weights": lambda m, rng: step(m),
    "other words": other_table,
    "a layer more": lambda m, rng: layers_of(m).append(copy.deepcopy(layers_of(m)[0])),
    "train and back": lambda m, rng: m.train(not m.training).train(not m.training),
}
#: Ways to copy a model.
COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda m: pickle.loads(pickle.dumps(m))}


def arguments(model: Any, rng: random.Random, seed: int) -> dict[str, Any]:
    kind = rng.choice(["right", "left", "both", "holes", "none"])
    batch = random_batch(model, kind, seed, rng.choice([4, 13]))
    ids, config, name = batch["input_ids"], model.config, type(model).__name__
    if rng.random() < 0.4 and not name.endswith("Model"):
        batch |= random_labels(model, batch, seed)
    if rng.random() < 0.3 and name != "DistilBertForMultipleChoice":  # which fails by itself
        limit = config.max_position_embeddings
        batch["position_ids"] = torch.randint(3, limit, ids.shape)
    if rng.random() < 0.3 and not name.startswith(("DistilBert", "MPNet")):
        batch["token_type_ids"] = torch.randint(0, config.type_vocab_size, ids.shape)
    if rng.random() < 0.3 and "Multiple" not in name:
        batch["inputs_embeds"] = model.get_input_embeddings()(batch.pop("input_ids")).detach()
    if rng.random() < 0.3:
        batch["output_hidden_states"] = True
    if rng.random() < 0.1:
        batch["output_attentions"] = True
    # ModernBERT's head for choices takes whole numbers only.
    if rng.random() < 0.3 and "attention_mask" in batch and "ModernBertForM" not in name:
        batch["attention_mask"] = batch["attention_mask"].to(rng.choice([torch.bool, torch.float]))
    return batch


@pytest.mark.parametrize("seed", range(SEED, SEED + TRIALS))
def test_trial(seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    name = rng.choice(CLASSES)
    reference = stock_of(name, seed, rng.choice(["eager", "sdpa"]))
    ours = hf_bert_impl.optimize(copy.deepcopy(reference), "float32")
    is_training, done = rng.random() < 0.3, []
    try:
        for _ in range(3):
            for model in (ours, reference):
                model.train(is_training)
            compare(ours, reference, rng, seed)
            done.append(rng.choice([*CHANGES, *COPIES, "optimize again"]))
            # A hook cannot be pickled, nor can those by which upstream collects probabilities.
            if done[-1] in COPIES and not any(part._forward_hooks for part in ours.modules()):
                ours = COPIES[done[-1]](ours)
            elif done[-1] in CHANGES:
                state = rng.getstate()
                for model in (ours, reference):
                    rng.setstate(state)
                    CHANGES[done[-1]](model, rng)
            elif done[-1] == "optimize again" and "a layer more" not in done:
                hf_bert_impl.optimize(ours, "float32")
        compare(hf_bert_impl.restore(ours), reference.eval(), rng, seed)
    except Exception as error:
        error.add_note(f"{name}, in train mode: {is_training}, after {done}")
        raise


def compare(ours: Any, reference: Any, rng: random.Random, seed: int) -> None:
    batch = arguments(reference, rng, seed)
    tokens = attended({"input_ids": None, **batch}) if "input_ids" in batch else None
    if tokens is None:
        shape = batch["inputs_embeds"].shape[:2]
        tokens = batch.get("attention_mask", torch.ones(shape)) != 0
    has_gradient = rng.random() < 0.4
    with torch.set_grad_enabled(has_gradient):
        found, expected = ours(**batch), reference(**batch)
    gaps = differences(found, expected, tokens)
    assert max(gaps.values()) < TOLERANCE, (
        gaps,
        {k: getattr(v, "shape", v) for k, v in batch.items()},
    )
    if rng.random() < 0.2:
        tuples = [model(**batch, return_dict=False) for model in (ours, reference)]
        kinds = [[getattr(value, "shape", type(value)) for value in values] for values in tuples]
        assert kinds[0] == kinds[1]
    if not has_gradient:
        return
    for model, output in ((ours, found), (reference, expected)):
        model.zero_grad()
        first = output["loss"] if "loss" in output else output[next(iter(output))]
        read = first[tokens] if first.shape[:2] == tokens.shape else first
        read.square().mean().backward()
    parameters = zip(ours.named_parameters(), reference.parameters(), strict=True)
    for (path, parameter), other in parameters:
        if other.grad is None:
            assert parameter.grad is None or not parameter.grad.any(), path
        else:
            torch.testing.assert_close(
                parameter.grad, other.grad, atol=TOLERANCE, rtol=1e-3, msg=path
            )
