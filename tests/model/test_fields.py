import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from recmix.errors import DataError
from recmix.model.fields import LARGEST_INTEGER, Fields

shapes = st.dictionaries(
    st.text(min_size=1, max_size=5),
    hnp.array_shapes(min_dims=0, max_dims=3, max_side=4),
    min_size=1,
    max_size=4,
)
FIELDS = Fields({"tokens": (3,), "length": ()})


def values_of(fields, lead, data):
    """Random integers or floats for each field."""
    kinds = st.sampled_from([np.float32, np.int64, np.uint8, np.bool_])
    return {
        name: data.draw(
            hnp.arrays(
                dtype := data.draw(kinds),
                (*lead, *shape),
                elements=st.integers(-LARGEST_INTEGER, LARGEST_INTEGER) if dtype == np.int64 else None,
            )
        )
        for name, shape in fields.shapes.items()
    }


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shapes, hnp.array_shapes(max_dims=2, max_side=3), st.data())
def test_unpack_reverses_pack(shapes, lead, data):
    fields = Fields(shapes)
    values = values_of(fields, lead, data)
    packed = fields.pack(values)
    assert (packed.shape, packed.dtype) == ((*lead, fields.size), np.float32)
    for unpacked in (fields.unpack(packed), fields.unpack(torch.from_numpy(packed))):
        assert list(unpacked) == list(shapes)
        for name, value in values.items():
            assert tuple(unpacked[name].shape) == (*lead, *shapes[name])
            np.testing.assert_array_equal(np.asarray(unpacked[name]), value.astype(np.float32))


@given(shapes)
def test_json_round_trip_keeps_the_order(shapes):
    fields = Fields(shapes)
    again = Fields.from_json(json.loads(json.dumps(fields.to_json(), sort_keys=True)))
    assert again == fields
    assert hash(again) == hash(fields)
    assert list(again.shapes) == list(shapes)


def test_order_of_fields_matters():
    assert Fields({"a": (2,), "b": ()}) != Fields({"b": (), "a": (2,)})


def test_fields_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        FIELDS.entries = ()


def test_unpack_works_under_vmap():
    x = torch.arange(8.0).view(2, 4)
    mapped = torch.func.vmap(lambda row: FIELDS.unpack(row)["tokens"] * 2)(x)
    torch.testing.assert_close(mapped, 2 * x[:, :3])


def test_integers_that_float32_rounds_are_rejected():
    for value in (LARGEST_INTEGER, -LARGEST_INTEGER):
        FIELDS.pack({"tokens": [[0, value, 0]], "length": [1]})
    for value in (LARGEST_INTEGER + 1, -LARGEST_INTEGER - 1):
        with pytest.raises(DataError, match=rf"'tokens' has the integer {value}.*2\*\*24"):
            FIELDS.pack({"tokens": [[0, value, 0]], "length": [1]})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tokens": np.zeros((2, 3))}, "got the fields tokens; expected tokens, length"),
        ({"tokens": np.zeros((2, 3)), "lengths": np.zeros(2)}, "tokens, lengths; expected"),
        ({"tokens": np.zeros((2, 4)), "length": np.zeros(2)}, r"'tokens' has shape \(2, 4\)"),
        ({"tokens": np.zeros((2, 3)), "length": np.zeros(3)}, r"'length' has \(3,\) examples"),
        ({"tokens": np.full((2, 3), "a"), "length": np.zeros(2)}, "'tokens' is <U1.*numbers"),
        ({"tokens": np.zeros((2, 3), complex), "length": np.zeros(2)}, "complex128"),
    ],
)
def test_values_that_do_not_fit_are_rejected(values, message):
    with pytest.raises(DataError, match=message):
        FIELDS.pack(values)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [({}, "no fields"), ({"a": (0,)}, r"shape \(0,\)"), ({"": (1,)}, "name ''"), ({3: ()}, "name 3")],
)
def test_invalid_fields_are_rejected(shapes, message):
    with pytest.raises(DataError, match=message):
        Fields(shapes)


def test_packed_examples_of_another_size_are_rejected():
    with pytest.raises(DataError, match=r"shape \(2, 5\); expected \(\.\.\., 4\)"):
        FIELDS.unpack(torch.zeros(2, 5))


def test_torch_is_not_imported():
    code = "import sys, recmix.model.fields; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
