import gzip
import sys
import types

import numpy as np
import pytest
import torch
from cases.commands import call
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import recmix
from recmix.data import as_data, check_examples, from_arrays, load, rebuild
from recmix.data.columns import check_columns, read_csv
from recmix.errors import DataError

names = st.lists(st.text("abcé ,\"'\n", min_size=1).filter(str.strip), min_size=3, max_size=3)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 6), st.just(3)),
        elements={"allow_nan": False, "allow_infinity": False},
    ),
    st.none() | names,
    st.booleans(),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_csv_round_trip(tmp_path, values, columns, zipped, end, bom):
    rows = [",".join(repr(float(value)) for value in row) for row in values]
    if columns is not None:
        rows.insert(0, ",".join('"' + name.replace('"', '""') + '"' for name in columns))
    content = (end.join(rows) + end).encode("utf-8-sig" if bom else "utf-8")
    path = tmp_path / "a.csv"
    path.write_bytes(gzip.compress(content) if zipped else content)
    found = read_csv(path)
    np.testing.assert_array_equal(found.values, values)
    expected = None if columns is None else tuple(name.strip().replace("\r\n", "\n") for name in columns)
    assert found.columns == expected


def test_csv_file_is_loaded_split_and_rebuilt(tmp_path):
    text = "age,height\n" + "".join(f"{row},{row / 2}\n" for row in range(20))
    (tmp_path / "people.csv.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "people.csv").write_text(text + "\n\n")
    data = load(tmp_path / "people.csv")
    assert (data.name, data.shape, data.columns, data.kind) == (
        "people",
        (2,),
        ("age", "height"),
        "real",
    )
    assert data.counts == {"train": 16, "val": 2, "test": 2}
    assert data.describe()["columns"] == ["age", "height"]
    assert rebuild(data.describe()).fingerprint == data.fingerprint
    assert as_data(str(tmp_path / "people.csv.gz")).fingerprint == data.fingerprint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("a,b\n", "no row of numbers"),
        ("a,b\n1,2\n3\n", "line 3: 1 values, expected 2"),
        ("1,2\n3,4,5\n", "line 2: 3 values, expected 2"),
        ("a,b\n1,2\n3,\n", "line 3: column 'b' is empty"),
        ("a,b\n\n1,2\n3,x y\n", "line 4: column 'b' is 'x y', not a number"),
        ("1,2\n3,x\n", "line 2: column 2 is 'x'"),
        ("smiles,logp\nCCO,1\n", r"column 'smiles' is 'CCO'.*SMILES strings from \.smi files"),
        ("a;b\n1;2\n", "semicolons or tabs"),
        ("a\tb\n1\t2\n", "semicolons or tabs"),
        (",a\n0,1\n", r"first column has no name.*index=False"),
        ("1.0,,3.0\n2,3,4\n5,6,7\n", "line 1: column 2 is empty"),
        ("1,2, NA\n2,3,4\n", "line 1: column 3 is ' NA', not a number"),
        ("a,b,c\n1,2\n", "has 3 names of columns, but 2 columns: name every column"),
        ("a,b\n1,nan\n", r"column 'b' has a value that is missing.*row 0"),
        ("1,2\n3,4e99\n", r"column 2 .*too large for float32, 4e\+99, the first in row 1"),
        ("a,b\n1,2\n3,\ud800\n", "not a readable .csv"),
    ],
)
def test_damaged_csv_is_rejected(tmp_path, text, message):
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(DataError, match=rf"a\.csv.*{message}"):
        read_csv(path)


@pytest.mark.parametrize("names", ["year,2019,2020", "NA,?,None"])
def test_names_of_csv_columns_may_look_like_numbers_or_missing_values(tmp_path, names):
    (tmp_path / "a.csv").write_text(f"{names}\n1,2,3\n")
    assert read_csv(tmp_path / "a.csv").columns == tuple(names.split(","))


def test_parquet_needs_pyarrow(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DataError, match=r"a\.parquet: .*pip install pyarrow"):
        load(tmp_path / "a.parquet")


def test_pyarrow_that_unpickles_is_not_used(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    old = types.ModuleType("pyarrow")
    old.__version__ = "14.0.0"
    monkeypatch.setitem(sys.modules, "pyarrow", old)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", types.ModuleType("pyarrow.parquet"))
    with pytest.raises(DataError, match=r"pyarrow 14\.0\.0 may run code"):
        load(tmp_path / "a.parquet")


def test_parquet_round_trip_and_damage(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    columns = {"a": np.arange(30), "b": np.linspace(-1, 1, 30), "c": np.arange(30) > 4}
    parquet.write_table(arrow.table(columns | {"__index_level_0__": np.arange(30)}), path)
    data = load(path)
    assert (data.columns, data.shape, data.kind) == (("a", "b", "c"), (3,), "real")
    rows = np.concatenate([data.x_train[:], data.x_val[:], data.x_test[:]])
    expected = np.stack([column.astype(np.float32) for column in columns.values()], 1)
    np.testing.assert_array_equal(rows[np.argsort(rows[:, 0])], expected)
    for name, column in (("d", ["x"] * 30), ("d", [[1.0]] * 30)):
        parquet.write_table(arrow.table(columns | {name: column}), path)
        with pytest.raises(DataError, match=r"a\.parquet: these columns do not hold numbers: 'd'"):
            load(path)
    for column in ([None, *range(29)], [None, *([True] * 29)]):
        parquet.write_table(arrow.table({"a": column}), path)
        with pytest.raises(DataError, match="column 'a' has a value that is missing.*row 0"):
            load(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"a\.parquet is not a readable \.parquet"):
        load(path)


@pytest.fixture
def pandas():
    return pytest.importorskip("pandas")


@pytest.fixture
def frame(pandas, rng):
    return pandas.DataFrame(
        {
            "age": rng.integers(0, 90, 20),
            "height": rng.normal(1.7, 0.1, 20),
            "smoker": rng.random(20) < 0.5,
            "weight": pandas.array(rng.integers(40, 90, 20), dtype="Int64"),
        },
        index=list("abcdefghijklmnopqrst"),
    )


def test_frame_keeps_the_names_of_its_columns(frame):
    data = as_data(frame)
    assert data.columns == ("age", "height", "smoker", "weight")
    assert (data.shape, data.counts["train"]) == ((4,), 16)
    whole = from_arrays(frame, frame, frame).x_train[:]
    np.testing.assert_array_equal(whole, frame.astype(float).to_numpy(np.float32))
    np.testing.assert_array_equal(check_examples(frame, shape=(4,)), whole)


def test_parts_must_have_the_columns_of_the_training_part(frame):
    with pytest.raises(DataError, match="x_val has its columns in another order"):
        from_arrays(frame, frame[frame.columns[::-1]])
    with pytest.raises(DataError, match="x_val lacks the columns age, and has none more"):
        from_arrays(frame, frame.drop(columns="age"))
    assert from_arrays(frame, frame.to_numpy(float)).columns == tuple(frame.columns)


SHORT = {"epochs": 1, "latent": 2, "device": "cpu", "progress": False, "likelihood": "gaussian-features"}


@pytest.fixture
def model(frame):
    return recmix.fit("vae", frame, **SHORT)


def test_models_refuse_the_columns_of_the_training_in_another_order(frame, model):
    other = frame[frame.columns[::-1]]
    message = (
        r"x has its columns in another order: column 1 is 'weight', expected 'age'\. "
        r"Give .* frame\[\['age', 'height', 'smoker', 'weight'\]\]"
    )
    uses = [model.elbo, model.posterior, model.reconstruct, model.calibrated, model.latent_report]
    for use in uses:
        with pytest.raises(DataError, match=message):
            use(other)
    with pytest.raises(DataError, match="x lacks the columns age, and has years more: column 1 is 'yea"):
        model.elbo(frame.rename(columns={"age": "years"}))
    with pytest.raises(DataError, match="x lacks the columns weight, and has none more"):
        model.elbo(frame[frame.columns[:3]])
    with pytest.raises(DataError, match="the data arrays has its columns in another order"):
        recmix.fit("vae", other, init=model, **SHORT)
    with pytest.raises(DataError, match="arrays has its columns in another order"):
        model.explore(as_data(other))


def test_tables_without_names_are_accepted_after_training_with_names(frame, model, pandas):
    values = frame.to_numpy(float)
    expected = model.elbo(frame)
    torch.testing.assert_close(model.elbo(values), expected)
    torch.testing.assert_close(model.elbo(pandas.DataFrame(values)), expected)  # columns 0, 1, ...
    torch.testing.assert_close(model.elbo(frame.rename(columns=lambda name: f" {name}")), expected)


def test_columns_without_names_in_another_order_are_refused(frame, pandas):
    numbered = pandas.DataFrame(frame.to_numpy(float))
    model = recmix.fit("vae", numbered, **SHORT)
    torch.testing.assert_close(model.elbo(frame), model.elbo(numbered))
    with pytest.raises(DataError, match="column 1 is '3', expected '0'"):
        model.elbo(numbered[numbered.columns[::-1]])


def test_long_lists_of_columns_are_not_repeated():
    names = [f"c{n}" for n in range(30)]
    with pytest.raises(DataError, match=r"column 1 is 'c29', expected 'c0'.*frame\[list\(known\)\]"):
        check_columns(names[::-1], names, "x", "known")


@pytest.mark.parametrize("command", ["evaluate", "tune"])
def test_commands_refuse_files_with_the_columns_in_another_order(command, tmp_path, capsys):
    values = np.random.default_rng(0).normal(size=(40, 3))
    for name, order in {"train": [0, 1, 2], "turned": [2, 1, 0]}.items():
        header = ",".join(np.array(["age", "height", "income"])[order])
        np.savetxt(tmp_path / f"{name}.csv", values[:, order], delimiter=",", header=header, comments="")
    np.savetxt(tmp_path / "plain.csv", values, delimiter=",")
    run = tmp_path / "run"
    recmix.fit("vae", tmp_path / "train.csv", out=run, **SHORT)
    words = ["--milliseconds", "1000"] if command == "tune" else ["--samples", "2"]
    assert call(command, run, "--data", tmp_path / "plain.csv", *words) == 0
    capsys.readouterr()
    assert call(command, run, "--data", tmp_path / "turned.csv", *words) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "turned.csv has its columns in another order: column 1 is 'income', expected 'age'" in message


def test_frames_that_do_not_hold_numbers_are_rejected(frame, pandas):
    texts = {
        "name": ["x"] * 20,
        "born": pandas.Timestamp("2000-01-01"),
        "kind": pandas.Categorical(["x"] * 20),
    }
    with pytest.raises(
        DataError, match=r"x_train: these columns do not hold numbers: 'name' .*'born' .*'kind' "
    ):
        as_data(frame.assign(**texts))
    for column in ("height", "weight"):
        missing = frame.copy()
        missing.iloc[3, missing.columns.get_loc(column)] = None
        with pytest.raises(DataError, match=f"column '{column}' .*missing.*row 3 .*dropna"):
            as_data(missing)
    with pytest.raises(DataError, match=r"column 'age' has the integer 16777217.*identifier"):
        as_data(frame.assign(age=2**24 + 1))
    with pytest.raises(DataError, match="no examples"):
        as_data(frame[:0])
