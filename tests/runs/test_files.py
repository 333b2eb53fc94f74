"""JSON files of a run: changes of their content are noticed, and huge files are refused."""

import json
import re

import pytest

from recmix.errors import ConfigError, RunError
from recmix.reports import store_files
from recmix.runs.files import DIGEST, read_json, read_toml, write_json

CONTENTS = [
    {"status": "done", "epoch": 3, "best_validation": -91.25, "names": ["é", None, True]},
    [{"epoch": 1, "val_iwae": -90.123}, {"epoch": 2, "val_iwae": -80.5}],
    {},
    [],
]


@pytest.mark.parametrize("content", CONTENTS)
def test_content_is_read_as_it_was_written(tmp_path, content):
    path = tmp_path / "a.json"
    write_json(path, content)
    assert read_json(path) == content
    assert store_files.read_json(str(tmp_path), "a.json") == content
    before = path.read_bytes()
    write_json(path, content)
    assert path.read_bytes() == before
    path.write_text(json.dumps(content))  # a file of an older version
    assert read_json(path) == content


@pytest.mark.parametrize("content", CONTENTS)
def test_no_changed_bit_changes_the_content_unnoticed(tmp_path, content):
    path = tmp_path / "a.json"
    write_json(path, content)
    before = path.read_bytes()
    noticed = 0
    for at in range(len(before)):
        for bit in (0, 1, 4):
            path.write_bytes(before[:at] + bytes([before[at] ^ 1 << bit]) + before[at + 1 :])
            try:
                found = read_json(path)
            except RunError:
                noticed += 1
                continue
            assert found == content
    assert noticed > len(before)


def test_message_says_what_to_do_with_a_file_that_was_edited_on_purpose(tmp_path):
    path = tmp_path / "scores.json"
    write_json(path, {"test/100": {"iwae": -90.0}})
    edited = path.read_text().replace("-90.0", "-80.0")
    path.write_text(edited)
    with pytest.raises(RunError, match=rf"scores\.json is damaged.*remove its field {DIGEST}"):
        read_json(path)
    with pytest.raises(RunError, match=r"scores\.json is damaged.*SHA-256"):
        store_files.read_json(str(tmp_path), "scores.json")
    path.write_text(re.sub(rf',\s*"{DIGEST}": "\w+"', "", edited))
    assert read_json(path) == {"test/100": {"iwae": -80.0}}
    path.write_text(json.dumps(json.loads(path.read_text()), indent=4))  # another layout
    assert read_json(path) == {"test/100": {"iwae": -80.0}}


def test_content_that_was_read_with_its_digest_can_be_written_again(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    write_json(path, json.loads(path.read_text()) | {"a": 2})
    assert read_json(path) == {"a": 2}


def test_huge_files_are_refused_before_they_are_read(tmp_path):
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # takes no space on the disk
    with pytest.raises(RunError, match=r"huge\.json has 1,099,511,627,776 bytes, more than"):
        read_json(path)


def test_endless_toml_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr("recmix.runs.files.LARGEST_JSON", 10)
    path = tmp_path / "a.toml"
    path.write_text("epochs = 1")
    assert read_toml(path) == {"epochs": 1}
    path.write_text("epochs = 12")
    with pytest.raises(ConfigError, match="has more than 10 bytes"):
        read_toml(path)
