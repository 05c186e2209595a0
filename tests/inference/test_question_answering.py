"""QuestionAnsweringPipeline: transformers 4's answers, from windows without padding."""

import itertools
import json

import pytest
import transformers
from transformers import pipeline

import hf_bert_impl
from hf_bert_impl import BertForQuestionAnswering, BertTokenizer, QuestionAnsweringPipeline
from hf_bert_impl.data.windows import QuestionCut
from hf_bert_impl.inference import question_answering as module
from tests.support.checkpoints import assert_same_answers as same

RIVER = "Anna lives in Paris, and works not far from the river."
LONG = (
    "anna lives in paris and works not far from the river. the cat sat on a mat, the dog did not. "
    "this example is about sport and science! who jumped? the quick brown fox did. 我爱北京. café "
) * 3
#: Letters with signs of their own, within a word and after one, and pictures.
ACCENTS = "Cafe\u0301 nai\u0308ve, e\u0301te\u0301! \u200b李 👩‍🚀\u0301 我爱北京。 東京は晴れ 1234"
QUESTIONS = ["who sat on the mat?", "where is anna?", "who jumped?", "when did the dog play?"]
CONTEXTS = [LONG, RIVER, "the fox jumped.", LONG[40:330]]
PAIRS = [*zip(QUESTIONS, CONTEXTS, strict=True)]
INPUTS = [{"question": question, "context": context} for question, context in PAIRS]


@pytest.fixture(scope="module")
def answerer(answering_folder):
    return QuestionAnsweringPipeline.from_pretrained(answering_folder, device="cpu")


# --- as in transformers 4 --------------------------------------------------------------------


def test_answers_of_transformers_4(registered, answering_folder, fixtures_dir):
    """Recorded from transformers 4.49's pipeline on the same model, in float32.

    Contexts that fit in one window: it knew no rule for tokens that are in several.
    """
    file = fixtures_dir / "question_answering" / "transformers_4.json"
    recorded = json.loads(file.read_text(encoding="utf-8"))
    answerer = pipeline("question-answering", model=str(answering_folder), device="cpu")
    assert type(answerer) is QuestionAnsweringPipeline
    assert type(answerer.model) is BertForQuestionAnswering
    assert len(recorded["cases"]) > 10
    for case in recorded["cases"]:
        same(answerer(**case["arguments"]), case["answers"])


def test_other_classes_are_answered_on_padded_batches(registered, answering_folder, answerer):
    """Tested with transformers' own BERT."""
    stock = transformers.BertForQuestionAnswering.from_pretrained(answering_folder)
    tokenizer = BertTokenizer.from_pretrained(answering_folder)
    other = pipeline("question-answering", model=stock.train(), tokenizer=tokenizer, device="cpu")
    assert type(other.model) is transformers.BertForQuestionAnswering
    options = {"top_k": 3, "handle_impossible_answer": True, "max_seq_len": 40, "doc_stride": 11}
    same(other(INPUTS, **options), answerer(INPUTS, **options))


# --- long contexts, all questions at once ----------------------------------------------------


def test_batches_are_sorted_and_change_nothing(answerer, monkeypatch):
    forwards, forward = [], answerer.model.forward
    monkeypatch.setattr(
        answerer.model, "forward", lambda **inputs: forwards.append(inputs) or forward(**inputs)
    )
    options = {"max_seq_len": 60, "doc_stride": 17}
    windows = [w for ws in answerer.preprocess(PAIRS, **options) for w in ws]
    expected = answerer(INPUTS, **options, top_k=3)
    [inputs] = forwards
    lengths = sorted((len(window) for window in windows), reverse=True)
    assert inputs["attention_mask"].sum(dim=1).tolist() == lengths
    for size in (1, 3, 7):
        forwards.clear()
        same(answerer(INPUTS, batch_size=size, **options, top_k=3), expected)
        assert len(forwards) == -(-8 // size)
        with monkeypatch.context() as patch:
            patch.setattr(module, "TOKEN_BUDGET", 60 * size)
            patch.setattr(module, "QUESTIONS_AT_ONCE", size)
            same(answerer(INPUTS, **options, top_k=3), expected)


# --- places in the text ----------------------------------------------------------------------


@pytest.mark.parametrize("align_to_words", [True, False])
@pytest.mark.parametrize("context", [ACCENTS, LONG])
def test_answers_are_pieces_of_the_text(answerer, context, align_to_words):
    answers = answerer(question="who?", context=context, top_k=400, align_to_words=align_to_words)
    places = [(answer["start"], answer["end"]) for answer in answers]
    assert len(answers) > 20 and len({*places}) == len(places)
    for answer, (start, end) in zip(answers, places, strict=True):
        assert answer["answer"] == context[start:end] == context[start:end].strip() != ""
        assert not context[end:].startswith(("\u0301", "\u0308"))
    scores = [answer["score"] for answer in answers]
    assert scores == sorted(scores, reverse=True)
    assert sum(scores) < 1.5  # of spans that begin or end within a word one was kept


# --- the null answer -------------------------------------------------------------------------


def test_the_null_answer_is_placed_by_the_threshold(answerer):
    [scored] = answerer.find_answers([("who?", RIVER)], top_k=4)
    # With this threshold the null answer comes between the second and the third span.
    threshold = scored.null_score - (scored.spans[1].score + scored.spans[2].score) / 2
    options = {"question": "who?", "context": RIVER, "handle_impossible_answer": True}
    found = answerer(**options, top_k=5, null_score_diff_threshold=threshold)
    assert [answer["answer"] == "" for answer in found] == [False, False, True, False, False]
    null = {"score": scored.null_probability, "start": 0, "end": 0, "answer": ""}
    same(found[2], null)
    best = scored.null_score_diff
    assert answerer(**options, null_score_diff_threshold=best + 1e-6)["answer"] != ""
    assert answerer(**options, null_score_diff_threshold=best)["answer"] != ""  # not above it
    same(answerer(**options, null_score_diff_threshold=best - 1e-3), null)


# --- what can be asked -----------------------------------------------------------------------


def test_ways_to_ask(answerer, monkeypatch):
    expected = answerer(INPUTS)
    assert isinstance(expected, list) and len(expected) == 4
    same(answerer(question=QUESTIONS, context=CONTEXTS), expected)
    same(answerer(*PAIRS[0]), expected[0])
    same(answerer(INPUTS[0]), expected[0])
    same(answerer([INPUTS[0]]), expected[0])  # transformers 4 has it so
    same(answerer(question=QUESTIONS, context=RIVER)[1], expected[1])
    same(answerer(*PAIRS[0], padding=True, num_workers=2), expected[0])
    assert answerer([]) == []
    monkeypatch.setattr(module, "QUESTIONS_AT_ONCE", 3)
    same(list(answerer(iter(INPUTS))), expected)
    read = []  # a stream is read as it is needed
    answers = answerer(read.append(1) or item for item in itertools.cycle(INPUTS))
    for place in range(5):
        same(next(answers), expected[place % 4])
    assert len(read) == 6
    answers.close()


def test_long_questions_are_cut_with_a_warning(answerer):
    question = "who sat on the mat? " * 20
    with pytest.warns(QuestionCut, match="max_question_len=7 tokens: 1 of 1"):
        found = answerer(question=question, context=RIVER, max_question_len=7)
    same(found, answerer(question="who sat on the mat? who", context=RIVER))


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        (("a", " \n"), {}, r"The context is empty \(question 'a'"),
        ((), {"question": ["a", "b"], "context": ["c"]}, "2 questions and 1 contexts"),
        ((), {"question": "a", "context": None}, "The context is null. Give it as a str"),
        (("a", RIVER), {"topk": 3}, "argument 'topk' is unknown. Known are max_seq_len"),
        ((), {}, r"arguments are \(\). Give a question and a context, or dicts"),
        (("a", "b"), {"context": "c"}, r"\(str, str, context=\)"),
        (([{"question": "a"}],), {}, "An input has 'question'. Give a dict with"),
    ],
)
def test_arguments_that_do_not_fit(answerer, args, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        answerer(*args, **options)


def test_a_model_that_does_not_fit(answering_folder):
    base = hf_bert_impl.BertModel.from_pretrained(answering_folder)
    with pytest.raises(TypeError, match="model is BertModel, which does not answer questions"):
        QuestionAnsweringPipeline(base, None)
