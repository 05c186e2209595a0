"""torch.compile: sizes change, the program does not."""

import pytest
import torch

pytestmark = pytest.mark.ecosystem

NAME = "BertForSequenceClassification"
#: Rows and length. The first two batches make the compiled program, and the others use it.
SIZES = ((3, 11), (4, 9), (2, 23), (5, 17), (7, 30))


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()


def padded(rows, length):
    generator = torch.Generator().manual_seed(rows * 100 + length)
    ids = torch.randint(5, 61, (rows, length), generator=generator)
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[0, length // 2 :] = 0
    mask[1, 3:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def test_compiled_once_for_all_sizes(model, caplog):
    from torch._dynamo.testing import CompileCounter

    from hf_bert_impl.model import modeling_bert

    modeling_bert.logger.warning_once.cache_clear()
    ours, counter = model(NAME), CompileCounter()
    counted, compiled = torch.compile(ours, backend=counter), torch.compile(ours, dynamic=True)
    with torch.no_grad():
        for batch in (padded(*size) for size in SIZES):
            expected = ours(**batch).logits
            for program in (counted, compiled):
                torch.testing.assert_close(program(**batch).logits, expected, atol=2e-5, rtol=0)
    assert counter.frame_count <= 2
    assert caplog.text.count("a compiled model computes padding") == 1


def test_compiled_training_gives_the_same_gradients(model):
    grads = []
    for compiled in (False, True):
        ours = model(NAME)
        call = torch.compile(ours, backend="aot_eager", dynamic=True) if compiled else ours
        call(**padded(3, 11), labels=torch.tensor([0, 1, 1])).loss.backward()
        grads.append([p.grad for p in ours.parameters()])
    torch.testing.assert_close(grads[1], grads[0], atol=2e-5, rtol=0)
