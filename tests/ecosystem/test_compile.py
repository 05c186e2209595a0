"""torch.compile and torch.export: sizes change, the program does not."""

import pytest
import torch

pytestmark = pytest.mark.ecosystem

NAME = "BertForSequenceClassification"
#: Rows and length. The first two batches make the compiled program, and the others use it.
SIZES = ((3, 11), (4, 9), (2, 23), (5, 17), (7, 30), (6, 31))


def padded(rows, length):
    generator = torch.Generator().manual_seed(rows * 100 + length)
    ids = torch.randint(5, 61, (rows, length), generator=generator)
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[0, length // 2 :] = 0
    mask[1, 3:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def test_compiled_gives_the_same(model):
    ours = model(NAME)
    torch.compiler.reset()
    compiled = torch.compile(ours, dynamic=True)
    with torch.no_grad():
        for rows, length in SIZES[:3]:
            batch = padded(rows, length)
            found, expected = compiled(**batch).logits, ours(**batch).logits
            torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)


def test_a_compiled_model_says_once_that_it_computes_padding(model, caplog):
    from hf_bert_impl.model import modeling_bert

    modeling_bert.logger.warning_once.cache_clear()
    ours = model(NAME)
    torch.compiler.reset()
    compiled = torch.compile(ours, backend="eager", fullgraph=True)
    with torch.no_grad():
        compiled(input_ids=padded(3, 11)["input_ids"])
        assert "padding" not in caplog.text  # there is no mask
        for rows, length in SIZES[:3]:
            compiled(**padded(rows, length))
    assert caplog.text.count("a compiled model computes padding") == 1


def test_compiled_training_gives_the_same_gradients(model):
    grads = []
    for compiled in (False, True):
        ours = model(NAME)
        torch.compiler.reset()
        call = torch.compile(ours, backend="aot_eager", dynamic=True) if compiled else ours
        call(**padded(3, 11), labels=torch.tensor([0, 1, 1])).loss.backward()
        grads.append([p.grad for p in ours.parameters()])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=0)


def test_no_recompilation_for_each_batch(model):
    from torch._dynamo.testing import CompileCounter

    ours, counter = model(NAME), CompileCounter()
    torch.compiler.reset()
    compiled = torch.compile(ours, backend=counter)
    counts = []
    with torch.no_grad():
        for rows, length in SIZES:
            compiled(**padded(rows, length))
            counts.append(counter.frame_count)
    assert counts[-1] == counts[1] <= 2


def test_exported_program_takes_other_sizes(model):
    ours = model(NAME)
    rows, length = (
        torch.export.Dim("rows", min=1, max=64),
        torch.export.Dim("length", min=2, max=40),
    )
    sizes = {0: rows, 1: length}
    with torch.no_grad():
        program = torch.export.export(
            ours,
            (),
            padded(3, 11),
            dynamic_shapes={"input_ids": sizes, "attention_mask": sizes},
        ).module()
        for shape in SIZES:
            batch = padded(*shape)
            torch.testing.assert_close(
                program(**batch).logits, ours(**batch).logits, atol=2e-5, rtol=0
            )
