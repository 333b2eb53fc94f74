import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recmix.errors import ConfigError, DataError
from recmix.model.sequence_vocabulary import END, MAX_CHARACTERS, PADDING, UNKNOWN, Smiles, Words
from recmix.model.vocabulary import vocabulary_from_json

KINDS = [Words, Smiles]
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("ClCBr", ["Cl", "C", "Br"]),
        ("C[C@@H](N)O", ["C", "[C@@H]", "(", "N", ")", "O"]),
        ("C%12CC%12", ["C", "%12", "C", "C", "%12"]),
        ("[13CH3+]/C=C\\C", ["[13CH3+]", "/", "C", "=", "C", "\\", "C"]),
        ("CCO ethanol Cl", ["C", "C", "O"]),
        ("C[N", ["C", "[", "N"]),
        ("%1", ["%", "1"]),
        ("", []),
        (" \t", []),
    ],
)
def test_smiles_are_cut_into_chemical_tokens(text, tokens):
    assert Smiles.split(text) == tokens


def test_most_frequent_tokens_are_taken_and_equal_ones_in_alphabetical_order():
    words = Words.from_texts(["b a c", "b d", "e d b"], size=3)
    assert words.tokens == ("<end>", "<unknown>", "b", "d", "a")
    assert Words.from_texts([f"w{i}" for i in range(10_005)]).classes == 10_002
    assert Smiles.from_texts(["CN", "CO", "CF"]).classes == 6


def test_default_length_suffices_for_99_percent():
    texts = ["a"] * 990 + ["a a a"] * 9 + ["a " * 50]
    assert Words.from_texts(texts).length == 2  # one word and the end
    assert Words.from_texts([*texts, "a a a"]).length == 4
    assert Words.from_texts(["a b c d"] * 3).shape == (5,)
    assert Words.from_texts(["a b", "", "  "]).length == 3  # empty texts do not count


def test_end_unknown_and_padding():
    words = Words.from_texts(["the cat", "the dog"], length=4)
    the, cat = words.tokens.index("the"), words.tokens.index("cat")
    found = words.encode(["the cat", "the bird sat", "", "the cat sat on", "<end> <unknown>"])
    expected = [
        [the, cat, END, PADDING],
        [the, UNKNOWN, UNKNOWN, END],
        [UNKNOWN, UNKNOWN, END, PADDING],
    ]
    np.testing.assert_array_equal(found.x, np.array(expected, np.float32))
    assert found.x.dtype == np.float32
    assert found.kept.tolist() == [0, 1, 4]
    assert found.problems == {
        "with tokens that are not in the vocabulary": 2,
        "empty": 1,
        "longer than 3 tokens": 1,
    }
    assert words.encode([]).x.shape == (0, 4)


def test_decode_accepts_any_row():
    words = Words.from_texts(["a b"], length=4)
    rows = [[2, 3, 2, 3], [2, -1, 3, 0], [0, 2, 2, 2], [2, 9, 0, -1], [2, np.nan, 0, -1], [2.5, 0, 0, 0]]
    assert words.decode(np.array([*rows, [np.inf] * 4])) == ["a b a b", "a", "", "", "", "", ""]
    assert words.decode(np.zeros((0, 4))) == []
    for wrong in (np.zeros((2, 5)), np.zeros(4), np.array([["a"] * 4])):
        with pytest.raises(DataError, match=r"expected numbers of shape \(N, 4\)"):
            words.decode(wrong)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [
        {"length": 1},
        {"length": 0},
        {"length": True},
        {"length": 2.0},
        {"length": 10**9},
        {"length": "5"},
        {"size": 0},
        {"size": -1},
        {"size": 10**9},
        {"size": False},
    ],
)
def test_sizes_are_checked(kind, options):
    with pytest.raises(ConfigError, match="must be a whole number from"):
        kind.from_texts(["C C"], **options)


@pytest.mark.parametrize("kind", KINDS)
def test_no_tokens_is_an_error(kind):
    for texts in ([], ["", "  "], ["\ud800"]):
        with pytest.raises(DataError, match="no training text with a token"):
            kind.from_texts(texts)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(texts=st.lists(st.text(max_size=30), max_size=8), length=st.integers(2, 40))
def test_any_text_is_encoded_and_decoded(kind, texts, length):
    try:
        vocabulary = kind.from_texts(texts, length)
    except DataError:
        return
    found = vocabulary.encode(texts)
    assert found.x.shape == (len(found.kept), length)
    assert ((found.x >= PADDING) & (found.x < vocabulary.classes)).all()
    assert ((found.x == END).sum(1) == 1).all()
    for text, decoded in zip([texts[i] for i in found.kept], vocabulary.decode(found.x), strict=True):
        tokens = kind.split(text)
        if all(token in vocabulary.tokens[2:] for token in tokens):
            assert decoded == kind.join(tokens)
    stored = json.loads(json.dumps(vocabulary.describe()))
    again = vocabulary_from_json(stored)
    assert (again, again.digest) == (vocabulary, vocabulary.digest)
    np.testing.assert_array_equal(again.encode(texts).x, found.x)


def test_vocabularies_differ_in_kind_tokens_and_length():
    words = Words(["C", "O"], 5)
    others = [Words(["O", "C"], 5), Words(["C", "O"], 6), Words(["C"], 5), Smiles(["C", "O"], 5)]
    assert all(words != other and words.digest != other.digest for other in others)
    assert words == Words(["C", "O"], 5)
    assert hash(words) == hash(Words(["C", "O"], 5))
    assert words != "words"


GOOD = {"kind": "words", "length": 5, "tokens": ["<end>", "<unknown>", "a", "b"]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "latin"}, "unknown kind of vocabulary 'latin'"),
        ({"kind": 3}, "not a stored vocabulary"),
        ({"more": 1}, "unknown field of a vocabulary 'more'"),
        ({"length": None}, "length must be a whole number"),
        ({"length": True}, "length must be a whole number"),
        ({"length": 10**9}, "length must be a whole number"),
        ({"length": [5]}, "length must be a whole number"),
        ({"tokens": None}, "must be a list that begins"),
        ({"tokens": "<end>"}, "must be a list that begins"),
        ({"tokens": ["a", "b", "c"]}, "must be a list that begins"),
        ({"tokens": ["<end>", "<unknown>"]}, "1 to 1,000,000 tokens, got 0"),
        ({"tokens": ["<end>", "<unknown>", "a", "a"]}, "occurs twice"),
        ({"tokens": ["<end>", "<unknown>", "<end>"]}, "occurs twice"),
        ({"tokens": ["<end>", "<unknown>", "<unknown>"]}, "occurs twice"),
        ({"tokens": ["<end>", "<unknown>", 3]}, "cannot be a token"),
        ({"tokens": ["<end>", "<unknown>", ["a"]]}, "cannot be a token"),
        ({"tokens": ["<end>", "<unknown>", ""]}, "cannot be a token"),
        ({"tokens": ["<end>", "<unknown>", "a b"]}, "cannot be a token"),
        ({"tokens": ["<end>", "<unknown>", "\ud800"]}, "cannot be a token"),
        ({"tokens": ["<end>", "<unknown>", "a" * (MAX_CHARACTERS + 1)]}, "cannot be a token"),
        ({"kind": "smiles", "tokens": ["<end>", "<unknown>", "CC"]}, "cannot be a token"),
        ({"kind": "smiles", "tokens": ["<end>", "<unknown>", "[C"]}, "cannot be a token"),
    ],
)
def test_wrong_stored_vocabularies_are_refused(change, message):
    assert vocabulary_from_json(GOOD).classes == 4
    with pytest.raises(DataError, match=message):
        vocabulary_from_json(GOOD | change)


def test_too_many_stored_tokens_are_refused(monkeypatch):
    monkeypatch.setattr("recmix.model.sequence_vocabulary.MAX_TOKENS", 3)
    with pytest.raises(DataError, match="at most 3 tokens, got 4"):
        Words.from_json({"length": 5, "tokens": ["<end>", "<unknown>", "a", "b", "c", "d"]})


@settings(max_examples=150, deadline=None)
@given(
    stored=ANY_JSON
    | st.fixed_dictionaries(
        {},
        optional={
            "kind": st.sampled_from(["words", "smiles"]) | ANY_JSON,
            "length": st.integers(-2, 10) | ANY_JSON,
            "tokens": st.lists(st.text(max_size=3) | ANY_JSON, max_size=4).map(
                lambda rest: ["<end>", "<unknown>", *rest]
            )
            | ANY_JSON,
        },
    )
)
def test_any_stored_content_is_a_vocabulary_or_a_data_error(stored):
    try:
        found = vocabulary_from_json(stored)
    except DataError:
        return
    assert found.describe() == stored
