"""Texts: files, folders, lists, named sets; hostile files; what is left out and said."""

import gzip
import json
import os
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recmix.data import SETS, DataWarning, as_data, from_arrays, from_texts, load, rebuild
from recmix.data.text_data import TEXT_SUFFIXES, read_texts
from recmix.errors import ConfigError, DataError
from recmix.model.sequence_vocabulary import Smiles, Words

SENTENCES = [f"the {animal} {verb}" for animal in ("cat", "dog", "cow") for verb in "abcdefgh"]
MOLECULES = [f"{'C' * count}{last}" for count in range(1, 7) for last in ("O", "N", "Cl")]


def texts_of(data):
    parts = (data.x_train, data.x_val, data.x_test)
    return [data.vocabulary.decode(part[:]) for part in parts if part is not None]


def write(path, texts, end="\n"):
    content = end.join(texts).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("suffix", TEXT_SUFFIXES)
def test_file_is_read_and_split(tmp_path, suffix):
    texts = SENTENCES if "txt" in suffix else MOLECULES
    data = load(write(tmp_path / f"my.data{suffix}", texts))
    assert (data.name, data.kind, data.fields) == ("my.data", "tokens", None)
    train, val, test = texts_of(data)
    assert sorted(train + val + test) == sorted(texts)
    assert len(val) == len(test) == max(1, len(texts) // 10)
    assert data.classes == data.vocabulary.classes
    known = {token for text in train for token in type(data.vocabulary).split(text)}
    assert set(data.vocabulary.tokens[2:]) == known  # of training texts only
    assert load(tmp_path / f"my.data{suffix}", seed=1).fingerprint != data.fingerprint


@pytest.mark.parametrize("suffix", [".txt", ".smi.gz"])
def test_description_loads_the_same_data(tmp_path, suffix):
    texts = SENTENCES if "txt" in suffix else MOLECULES
    path = write(tmp_path / f"a{suffix}", texts)
    data = load(path, seed=2, length=12, vocabulary_size=5)
    description = json.loads(json.dumps(data.describe()))
    assert description["options"] == {"length": 12, "vocabulary_size": 5}
    assert description["vocabulary"] == {"kind": data.vocabulary.kind, "sha256": data.vocabulary.digest}
    again = rebuild(description)
    assert (again.fingerprint, again.vocabulary) == (data.fingerprint, data.vocabulary)
    assert rebuild(description, vocabulary=data.vocabulary).fingerprint == data.fingerprint
    write(path, [*texts[:-1], "CCCCC"])
    with pytest.raises(DataError, match="has changed"):
        rebuild(description)


def test_fingerprint_depends_on_the_vocabulary():
    one, two = from_texts(["a b", "b a", "a"]), from_texts(["c d", "d c", "c"])
    np.testing.assert_array_equal(one.x_train[:], two.x_train[:])
    assert one.fingerprint != two.fingerprint


def test_foreign_vocabulary_is_used(tmp_path):
    words = Words.from_texts(SENTENCES)
    path = write(tmp_path / "a.txt", ["the bird a", "the cat b", "the dog c"])
    data = load(path, vocabulary=words)
    assert data.vocabulary is words
    assert sorted(text for part in texts_of(data) for text in part) == [
        "the <unknown> a",
        "the cat b",
        "the dog c",
    ]
    assert rebuild(data.describe(), vocabulary=words).fingerprint == data.fingerprint
    with pytest.raises(DataError, match="has changed"):
        rebuild(data.describe())
    with pytest.raises(ConfigError, match="vocabulary is given, and determines length"):
        load(path, vocabulary=words, length=4)
    with pytest.raises(ConfigError, match="vocabulary is of smiles, but a has texts of words"):
        load(path, vocabulary=Smiles.from_texts(MOLECULES))
    molecules = from_texts(["CO", "CC", "CN"], vocabulary=Smiles.from_texts(MOLECULES))
    assert isinstance(molecules.vocabulary, Smiles)


def test_windows_line_ends_byte_order_mark_and_names_of_molecules(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone two\r\nthree\r\n")
    assert read_texts(path) == ["one two", "three"]
    write(tmp_path / "train.smi", ["CCO ethanol", "CC\tethane gas", "  C  ", "N 7"])
    write(tmp_path / "val.smi", ["C"])
    write(tmp_path / "test.smi", ["C methane"])
    assert texts_of(load(tmp_path))[0] == ["CCO", "CC", "C", "N"]


def test_only_a_line_feed_ends_a_line(tmp_path):
    path = write(tmp_path / "a.txt", ["a\x0bb\x0cc\x1dd\u2028e", "f"])
    assert len(read_texts(path)) == 2


@pytest.mark.parametrize(
    "names", ["train.txt valid.txt test.txt", "a.train.txt.gz b.VAL.txt c.test.txt"]
)
def test_folder_of_parts(tmp_path, names):
    parts = [SENTENCES[:10], SENTENCES[10:16], SENTENCES[16:]]
    for name, texts in zip(names.split(), parts, strict=True):
        write(tmp_path / name, texts)
    (tmp_path / "notes.txt").write_text("not a part")
    (tmp_path / "README").write_text("x")
    data = load(tmp_path)
    assert data.counts == {"train": 10, "val": 6, "test": 8}
    assert data.name == tmp_path.name
    assert texts_of(data)[0] == parts[0]
    assert rebuild(data.describe()).fingerprint == data.fingerprint


def test_folder_without_a_test_file_holds_test_texts_out(tmp_path):
    write(tmp_path / "train.smi", MOLECULES[:10])
    write(tmp_path / "val.smi", MOLECULES[:2])
    assert load(tmp_path).counts == {"train": 9, "val": 2, "test": 1}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["val.txt", "test.txt"], "no training texts: add train.txt"),
        (["train.txt", "val.txt", "valid.txt"], "two files of validation texts, val.txt and valid.txt"),
        (["train.txt", "val.smi"], "files of words .* and of SMILES"),
    ],
)
def test_unclear_folders_are_refused(tmp_path, names, message):
    for name in names:
        write(tmp_path / name, SENTENCES)
    with pytest.raises(DataError, match=message):
        load(tmp_path)


def test_what_is_left_out_is_counted_and_said_once(tmp_path):
    path = write(tmp_path / "a.txt", ["", "a b", "  ", "a c", "a b c d e", "a b", "b c", "b a"])
    with pytest.warns(DataWarning) as found:
        data = load(path, length=4)
    (warning,) = found
    assert str(warning.message).startswith(
        "a: 3 of 8 texts are left out (2 empty, 1 longer than 3 tokens)"
    )
    assert data.notes[0] in str(warning.message)
    assert "1 texts are copies of another text of the same part" in data.notes
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rebuild(data.describe())  # not said again


def test_invalid_smiles_strings_are_counted_and_kept(tmp_path):
    path = write(tmp_path / "a.smi", [*MOLECULES, "C(C", "C1CC", "not a molecule"])
    with pytest.warns(DataWarning, match="3 texts that are not valid SMILES strings"):
        data = load(path)
    assert sum(data.counts.values()) == len(MOLECULES) + 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not load(write(tmp_path / "b.smi", MOLECULES)).notes


def test_one_very_long_text_does_not_set_the_length():
    texts = [f"a{i} b c" for i in range(40)] + ["a " * 5000]
    with pytest.warns(DataWarning, match=r"1 longer than 50 tokens.*give length=\.\.\. \(--length\)"):
        data = from_texts(texts, ["a b"], ["b"])
    assert data.shape == (51,)
    assert from_texts(["a b c"] * 3 + ["a " * 40], ["a b"], ["b"]).shape == (41,)  # this is no outlier


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends_of_any_system(tmp_path, end):
    path = tmp_path / "a.txt"
    path.write_bytes(end.join(SENTENCES).encode())
    assert read_texts(path) == SENTENCES


def test_default_length_is_said():
    texts = [f"a{i} b" for i in range(300)] + ["a b c d e"]
    with pytest.warns(DataWarning, match="the length suffices for 99 %.*give length="):
        data = from_texts(texts, ["a b"])
    assert data.shape == (3,)


def test_unknown_words_and_copies_are_notes_but_no_warning():
    data = from_texts(["a b", "c d"], ["a x", "c d"], ["a b"])
    assert data.notes == (
        "1 texts with tokens that are not in the vocabulary",
        "2 validation or test texts are also training texts",
    )


def test_copies_of_a_text_are_in_one_part():
    texts = [f"w{i}" for i in range(40) for _ in range(3)]
    train, val = texts_of(from_texts(texts, seed=1, hold_out_test=False))
    assert len(train) + len(val) == len(texts)
    assert not set(train) & set(val)
    assert len(set(val)) == 4 or "<unknown>" in val


def test_texts_with_the_same_example_are_in_one_part():
    texts = [f"w{i}{space}x" for i in range(40) for space in (" ", "  ")]
    data = from_texts(texts, seed=1, length=4)
    train, val = ({row.tobytes() for row in x[:]} for x in (data.x_train, data.x_val))
    unknown = data.vocabulary.encode(["zzz x"]).x[0].tobytes()
    assert not (train & val) - {unknown}


def test_molecules_with_the_same_graph_are_in_one_part():
    pytest.importorskip("rdkit")
    texts = [f"{'C' * n}{end}" for n in range(1, 11) for end in ("O", "N")]
    texts += [f"{end}{'C' * n}" for n in range(1, 11) for end in ("O", "N")]
    data = from_texts(texts, kind="molecule-graphs", seed=1)
    train, val = ({row.tobytes() for row in x[:]} for x in (data.x_train, data.x_val))
    assert val
    assert not train & val


def test_a_vocabulary_of_graphs_gives_the_split_of_its_own_data(tmp_path):
    pytest.importorskip("rdkit")
    texts = [f"{'C' * n}{end}" for n in range(1, 11) for end in ("O", "N")]
    path = write(tmp_path / "a.smi", [*texts, *(text[::-1] for text in texts)])
    data = load(path, graphs=True)
    assert load(path, vocabulary=data.vocabulary).fingerprint == data.fingerprint


def test_nothing_left_is_an_error_with_counts(tmp_path):
    path = write(tmp_path / "a.txt", ["a b c d"] * 5 + ["", "a b c", "c b a"])
    with pytest.raises(
        DataError, match=rf"{path}: a: no training text is left of \d.*longer than 1 tokens"
    ):
        load(path, length=2)
    with pytest.raises(DataError, match="no training text, only 3 empty"):
        load(write(tmp_path / "b.txt", ["", " ", "\t", ""]))
    with pytest.raises(DataError, match="no validation text is left of 1: 1 longer than 2 tokens"):
        from_texts(["a b", "a"], ["a b c"], length=3)
    with pytest.raises(DataError, match="cannot be split"):
        load(write(tmp_path / "c.txt", ["a", "b"]))
    with pytest.raises(DataError, match=r"40 text\(s\), 1 of them different, cannot be split into 3"):
        load(write(tmp_path / "d.txt", ["a b"] * 40))


def test_invalid_utf8_names_the_line(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"good\nalso good\nb\xe4d\n")
    with pytest.raises(DataError, match=r"a\.txt, line 3: byte 0xe4 is not UTF-8.*iconv"):
        load(path)
    path.write_text("one two\nthree", encoding="utf-16")
    with pytest.raises(DataError, match="line 1: .*not UTF-8"):
        load(path)


def test_hostile_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("RECMIX_MAX_BYTES", "1000000")
    path = tmp_path / "bomb.txt.gz"
    path.write_bytes(gzip.compress(b"a\n" * 10**6))
    with pytest.raises(DataError, match="expected at most 62500: .*RECMIX_MAX_BYTES"):
        load(path)
    path.write_bytes(gzip.compress(b"a b\n" * 1000)[:-9])
    with pytest.raises(DataError, match="not a complete gzip file"):
        load(path)
    long = write(tmp_path / "long.txt", [f"{i}" for i in range(400)])
    with pytest.raises(DataError, match="long as examples holds .* bytes or more"):
        load(long, length=90_000)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.smi")
        with pytest.raises(DataError, match="named pipe"):
            load(tmp_path / "pipe.smi")
    (tmp_path / "folder.txt").mkdir()
    with pytest.raises(DataError):
        load(tmp_path / "folder.txt")


@pytest.mark.parametrize("suffix", [".txt", ".smi.gz"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200) | st.text(max_size=200).map(lambda t: t.encode(errors="replace")))
def test_any_content_gives_data_or_a_data_error(tmp_path, suffix, content):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        try:
            data = load(path)
        except DataError:
            return
        assert load(path).fingerprint == data.fingerprint
    for part in (data.x_train, data.x_val, data.x_test):
        assert len(part) >= 1
        assert ((part[:] == 0).sum(1) == 1).all()


@pytest.mark.parametrize("suffix", [".txt", ".smi.gz"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=100))
def test_any_damage_of_a_compressed_file_is_a_data_error(tmp_path, suffix, content):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"\x1f\x8b" + content)
    with pytest.raises(DataError):
        load(path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 1}, "length must be a whole number"),
        ({"length": -3}, "length must be a whole number"),
        ({"vocabulary_size": 0}, "vocabulary_size must be a whole number"),
        ({"graphs": True}, "graphs is for molecules"),
        ({"size": 8}, "size and crop are for image files"),
    ],
)
def test_wrong_options_are_refused(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        load(write(tmp_path / "a.txt", SENTENCES), **options)


def test_options_of_texts_are_refused_for_other_data(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((9, 3)))
    with pytest.raises(ConfigError, match=r"length is for texts; .*a\.npy holds none"):
        load(tmp_path / "a.npy", length=3)
    with pytest.raises(ConfigError, match="graphs is for texts; digits holds none"):
        load("digits", graphs=True)
    words = Words.from_texts(SENTENCES)
    assert load("digits", vocabulary=words).vocabulary is None


def test_list_of_texts_is_read_as_words():
    data = as_data(SENTENCES)
    assert isinstance(data.vocabulary, Words)
    assert data.counts == {"train": 20, "val": 2, "test": 2}
    assert as_data(np.array(SENTENCES)).fingerprint == data.fingerprint
    with pytest.raises(DataError, match="list of texts; expected numbers: use recmix.data.from_texts"):
        from_arrays(SENTENCES)
    with pytest.raises(DataError, match="were texts in memory.*give the texts again"):
        rebuild(data.describe())


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("one text", "are a str; expected a list"),
        ({"a": "b"}, "are a dict; expected a list"),
        (["a", 3, "b"], "training text 1 is a int"),
        (["a", None], "training text 1 is a NoneType"),
        ([], "no training text"),
    ],
)
def test_wrong_texts_are_refused(texts, message):
    with pytest.raises(DataError, match=message):
        from_texts(texts)


def test_unknown_kind_is_refused():
    with pytest.raises(DataError, match="unknown kind of vocabulary 'word'.*did you mean 'words'"):
        from_texts(SENTENCES, kind="word")


def test_tokens_have_no_mean_and_no_variance():
    found = from_texts(SENTENCES).statistics(examples=True)
    assert (found.centre, found.spread, found.variance) == (None, None, 1.0)
    assert found.examples.shape[1:] == (4,)


def test_graphs(tmp_path):
    pytest.importorskip("rdkit")
    path = write(tmp_path / "a.smi", MOLECULES)
    data = load(path, graphs=True, length=8)
    assert (data.kind, data.vocabulary.kind) == ("graph", "molecule-graphs")
    assert data.fields == data.vocabulary.fields
    assert data.shape == data.vocabulary.shape == (36,)
    assert rebuild(json.loads(json.dumps(data.describe()))).fingerprint == data.fingerprint
    with pytest.raises(ConfigError, match="vocabulary_size is for sequences"):
        load(path, graphs=True, vocabulary_size=4)
    with pytest.warns(DataWarning, match="left out"):
        from_texts([*MOLECULES, "C(C"], ["CCO"], kind="molecule-graphs")


@pytest.mark.parametrize("name", ["wikitext2", "zinc250k"])
def test_missing_files_of_named_sets_are_described(tmp_path, name, monkeypatch):
    monkeypatch.delenv("RECMIX_OFFLINE", raising=False)
    folder = tmp_path / SETS[name].folders[0]
    with pytest.raises(DataError, match=rf"Put these files into {folder}:[\s\S]*there is no URL"):
        load(name, root=tmp_path)


def test_another_list_of_molecules_is_refused_as_zinc250k(tmp_path):
    (tmp_path / "molecules").mkdir()
    write(tmp_path / "molecules" / "zinc250k.smi.gz", MOLECULES)
    with pytest.raises(DataError, match="not the published list of molecules: the SHA-256 sum"):
        load("zinc250k", root=tmp_path)


def test_named_set_of_texts(tmp_path):
    (tmp_path / "text").mkdir()
    for part, texts in (
        ("train", SENTENCES[:12]),
        ("valid", SENTENCES[12:18]),
        ("test", SENTENCES[18:]),
    ):
        write(tmp_path / "text" / f"wikitext2_sentences.{part}.txt.gz", texts)
    data = load("wikitext2", root=tmp_path, length=9)
    assert data.shape == (9,)
    assert texts_of(data)[2][0] == "the <unknown> c"  # cow is no training word
    assert rebuild(json.loads(json.dumps(data.describe()))).fingerprint == data.fingerprint
    with pytest.raises(ConfigError, match="size and crop are for image files; wikitext2 has texts"):
        load("wikitext2", root=tmp_path, size=3)


def test_real_wikitext2(need):
    root = need("text/wikitext2_sentences.train.txt.gz")
    data = load("wikitext2", root=root)
    assert data.counts == SETS["wikitext2"].counts
    assert data.shape == SETS["wikitext2"].shape
    assert data.classes == 10_002
    assert data.vocabulary.decode(data.x_train[2:3]) == [
        "Released in January 2011 in Japan , it is the third game in the Valkyria series ."
    ]


def test_real_molecules_survive_the_round_trip(need):
    path = need("molecules/zinc250k.smi.gz") / "molecules" / "zinc250k.smi.gz"
    texts = read_texts(path)[:2000]
    smiles = Smiles.from_texts(texts, length=130)
    assert smiles.decode(smiles.encode(texts).x) == texts
    counts = [len(Smiles.split(text)) for text in texts]
    default = Smiles.from_texts(texts)
    assert 0.99 <= np.mean(np.array(counts) < default.length) < 1


def test_a_file_of_numbers_may_be_a_table(tmp_path):
    path = tmp_path / "table.txt"
    np.savetxt(path, np.arange(60.0).reshape(20, 3))
    assert "all words are numbers: is this a table? Then save it as .csv or .npy" in load(path).notes
    path.write_text("\n".join(f"{number} cats" for number in range(20)))
    assert not any("numbers" in note for note in load(path).notes)
