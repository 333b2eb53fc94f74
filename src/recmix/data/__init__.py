"""Load examples, check them, and split them into training, validation and test examples.

>>> import recmix.data
>>> data = recmix.data.load("digits")
>>> data.x_train.shape, data.x_val.shape, data.x_test.shape
((1350, 1, 8, 8), (150, 1, 8, 8), (297, 1, 8, 8))
"""

from recmix.data.checks import check_examples
from recmix.data.examples import ArrayExamples, Examples
from recmix.data.file_images import FileImages
from recmix.data.in_memory import as_examples
from recmix.data.moving_digits import moving_digits
from recmix.data.requirements import check_values
from recmix.data.set_files import Entry, NamedSet, data_root
from recmix.data.sets import SETS, inventory
from recmix.data.sources import as_data, has_same_examples, load, load_again, load_for_training, rebuild
from recmix.data.sparse_examples import SparseExamples
from recmix.data.splits import Data, split
from recmix.data.text_data import DataWarning, from_texts
from recmix.data.user_data import from_arrays

__all__ = [
    "SETS",
    "ArrayExamples",
    "Data",
    "DataWarning",
    "Entry",
    "Examples",
    "FileImages",
    "NamedSet",
    "SparseExamples",
    "as_data",
    "as_examples",
    "check_examples",
    "check_values",
    "data_root",
    "from_arrays",
    "from_texts",
    "has_same_examples",
    "inventory",
    "load",
    "load_again",
    "load_for_training",
    "moving_digits",
    "rebuild",
    "split",
]
