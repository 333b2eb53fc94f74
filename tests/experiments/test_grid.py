"""From a file to runs: what is run, what it is called, what is refused."""

import copy
import json
import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_grid import content, grid, write_grid

from recmix.errors import ConfigError
from recmix.experiments.grid import check, digest_of, expand, read_grid

FULL = {
    "title": "everything",
    "protocol": {"splits": 2, "restarts": 2, "samples": [100, 500], "choose_by": 50},
    "budget": {
        "first": {"epochs": 7, "patience": 3, "schedule": "cosine"},
        "second": {"epochs": 2, "learning_rate": 1e-5},
    },
    "columns": [
        {"data": ["mnist", "omniglot"], "latent": [10, 20]},
        {"data": "binary-mnist", "latent": 50, "network": "dense", "methods": ["vae", "sa"]},
    ],
    "methods": [
        {"name": "vae"},
        {"name": "vae", "continued": True},
        {"name": "sa", "steps": [1, 2], "step_size": 0.01},
        {"name": "rme", "order": [2, 3], "eps_max": 0.2},
    ],
}


def digests(found):
    return [job.digest for job in found.jobs]


def test_what_a_file_asks_for():
    found = expand(FULL, "full")
    rows = {job.row for job in found.jobs}
    assert rows == {"VAE", "VAE+", "SA(1)", "SA(2)", "RME(2)", "RME(3)"}
    assert len(found.jobs) == 2 * 2 * (4 * 6 + 4)  # splits, restarts, columns times rows
    assert not found.notes
    job = next(j for j in found.jobs if j.row == "SA(2)" and j.column["data"] == "binary-mnist")
    assert job.column == {
        "data": "binary-mnist",
        "latent": 50,
        "likelihood": "bernoulli",
        "network": "dense",
        "decoder_network": "dense",
    }
    assert job.evaluate == ("test/100", "test/500", "val/50")
    assert job.definition["options"]["step_size"] == 0.01
    assert job.definition["options"]["momentum"] == 0.0  # defaults are part of it
    training = job.definition["training"]
    assert (training["epochs"], training["learning_rate"], training["seed"]) == (2, 1e-5, job.restart)
    base = next(j for j in found.jobs if j.digest == job.depends)
    assert (base.row, base.column, base.split) == ("VAE", job.column, job.split)
    assert base.definition["training"]["schedule"] == "cosine"
    assert base.definition["training"]["learning_rate"] == 5e-4  # the first stage's own


def test_each_vae_is_trained_once_and_comes_before_what_starts_from_it():
    found = expand(FULL, "full")
    place = {job.digest: i for i, job in enumerate(found.jobs)}
    bases = [job for job in found.jobs if job.depends is None]
    assert len(bases) == 2 * 2 * 5
    assert {job.row for job in bases} == {"VAE"}
    for job in found.jobs:
        assert job.depends is None or place[job.depends] < place[job.digest]


def test_the_control_is_in_every_grid():
    found = grid()
    assert [job.row for job in found.jobs] == ["VAE", "VAE+", "RME(2)"]
    assert any("VAE+ is not in the file and was added" in note for note in found.notes)
    plus, rme = found.jobs[1:]
    assert plus.definition["training"] == rme.definition["training"]
    assert plus.depends == rme.depends == found.jobs[0].digest
    only = grid(columns=[{"data": "digits", "latent": 2, "methods": ["rme"]}])
    assert digests(only) == digests(found)


def test_what_is_asked_for_twice_is_one_run():
    found = grid(
        methods=[{"name": "rme", "order": [2, 2, 3]}, {"name": "rme", "order": 2}],
        columns=[{"data": "digits", "latent": [2, 3]}, {"data": "digits", "latent": 2}],
    )
    assert len(found.jobs) == len(set(digests(found))) == 2 * 4
    assert any("more than once" in note for note in found.notes)


def test_the_same_run_in_two_grids_has_one_name():
    small = grid()
    large = grid(
        title="Large",
        protocol={"splits": 2, "restarts": 3, "samples": [100], "choose_by": 7},
        columns=[{"data": "digits", "latent": [2, 5]}],
        methods=[{"name": "rme", "order": [2, 3], "label": "ours"}, {"name": "hf", "flows": 1}],
    )
    assert set(digests(small)) < set(digests(large))


def shuffled(value, order):
    if isinstance(value, dict):
        keys = list(value)
        order.shuffle(keys)
        return {key: shuffled(value[key], order) for key in keys}
    return [shuffled(item, order) for item in value] if isinstance(value, list) else value


@given(st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_the_order_of_keys_does_not_matter(seed):
    there = expand(shuffled(FULL, random.Random(seed)), "full")
    assert digests(there) == digests(expand(FULL, "full"))


@given(
    st.dictionaries(
        st.text(), st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False)
    ).filter(bool),
    st.data(),
)
def test_every_value_of_a_definition_is_in_its_digest(definition, data):
    key = data.draw(st.sampled_from(sorted(definition)))
    other = data.draw(st.integers(-5, 5).filter(lambda n: json.dumps(n) != json.dumps(definition[key])))
    assert digest_of(definition) != digest_of({**definition, key: other})


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("budget", "first", "epochs"), 2),
        (("budget", "first", "learning_rate"), 1e-3),
        (("budget", "second", "epochs"), 2),
        (("budget", "second", "learning_rate"), 1e-5),
        (("budget", "second", "fresh_rate"), 10.0),
        (("budget", "first", "dtype"), "float64"),
        (("columns", 0, "latent"), 3),
        (("columns", 0, "network"), "dense"),
        (("columns", 0, "decoder_network"), "dense"),
        (("columns", 0, "likelihood"), "bernoulli"),
        (("columns", 0, "first"), {"patience": 5}),
        (("protocol", "splits"), [3]),
        (("protocol", "restarts"), [3]),
        (("methods", 0, "order"), 3),
        (("methods", 0, "bound"), 100.0),
        (("methods", 0, "learning_rate"), 1e-6),
    ],
)
def test_a_change_of_what_defines_a_run_changes_its_name(where, value):
    changed = copy.deepcopy(content())
    inner = changed
    for step in where[:-1]:
        inner = inner[step]
    inner[where[-1]] = value
    before, after = grid().jobs[-1], expand(changed, "small").jobs[-1]
    assert before.digest != after.digest
    if where[0] == "methods":
        assert before.depends == after.depends


@pytest.mark.parametrize(
    "change",
    [
        {"title": "another"},
        {"protocol": {"splits": 1, "restarts": 1, "samples": [9, 5], "choose_by": 2}},
        {"methods": [{"name": "rme", "order": 2, "label": "mine"}]},
        {
            "budget": {
                "first": {"epochs": 1, "batch_size": 64, "checkpoint_every": 5, "tensorboard": True},
                "second": {"epochs": 1, "batch_size": 64, "learning_rate": 0.0001},
            }
        },
    ],
)
def test_what_does_not_define_a_result_is_not_in_its_name(change):
    assert digests(grid(**change)) == digests(grid())


def test_a_method_keeps_its_share_of_the_learning_rate():
    found = grid(methods=[{"name": "bvi-er1"}, {"name": "bvi-er2", "learning_rate": 1e-3}])
    rates = {job.label: job.definition["training"]["learning_rate"] for job in found.jobs}
    assert rates["VAE+"] == 1e-4
    assert rates["BVI-ER1"] == pytest.approx(1e-5)
    assert rates["BVI-ER2"] == 1e-3


def test_methods_of_the_first_stage_start_from_nothing_unless_told():
    found = grid(methods=[{"name": "iwae", "samples": 5}, {"name": "iwae", "continued": True}])
    by_row = {job.row: job for job in found.jobs}
    assert by_row["IWAE(5)"].depends is None
    assert by_row["IWAE(5)"].definition["training"]["learning_rate"] == 5e-4
    assert by_row["IWAE+(5)"].depends == by_row["VAE"].digest


def test_labels_tell_axes_apart():
    found = grid(methods=[{"name": "rme", "order": [2, 3], "bound": [10, 500]}])
    rows = {job.row for job in found.jobs} - {"VAE", "VAE+"}
    assert rows == {f"RME bound={b}({o})" for b in (10, 500) for o in (2, 3)}
    with pytest.raises(ConfigError, match=r"2 different runs are all RME\(2\).*its own label"):
        grid(methods=[{"name": "rme", "order": 2}, {"name": "rme", "order": 2, "bound": 10}])


def test_your_own_images(tmp_path):
    found = grid(columns=[{"data": str(tmp_path / "mine.npy"), "latent": 2, "size": 28}])
    assert found.jobs[0].column["data"] == str((tmp_path / "mine.npy").resolve())
    assert found.jobs[0].column["size"] == 28
    assert found.jobs[0].definition["likelihood"] is None  # by the images, once they are read
    check(found.jobs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"protocl": {}}, "unknown table 'protocl': did you mean 'protocol'"),
        ({"protocol": {"split": 3}}, "did you mean 'splits'"),
        ({"protocol": {"splits": 0}}, "splits must be whole numbers of 1 or more"),
        ({"protocol": {"splits": [1, 1]}}, "different whole numbers"),
        ({"protocol": {"samples": 100}}, "samples must be a list"),
        ({"protocol": {"restarts": True}}, "restarts must be"),
        ({"budget": {"frist": {}}}, "did you mean 'first'"),
        ({"budget": {"first": {"epoch": 3}}}, "did you mean 'epochs'"),
        ({"budget": {"first": {"epochs": -3}}}, "epochs must be positive"),
        ({"budget": {"first": {"epochs": "many"}}}, "epochs must be a whole number"),
        ({"budget": {"first": {"seed": 3}}}, "unknown training option in first"),
        ({"budget": {"second": {"schedule": "cosin"}}}, "did you mean 'cosine'"),
        ({"columns": []}, "at least one"),
        ({"columns": [{"latent": 3}]}, "has no data"),
        ({"columns": [{"data": "mnits"}]}, "did you mean 'mnist'"),
        ({"columns": [{"data": "digits", "latnet": 3}]}, "did you mean 'latent'"),
        ({"columns": [{"data": "digits", "latent": 0}]}, "latent must be whole numbers of 1"),
        ({"columns": [{"data": "digits", "latent": []}]}, "empty list"),
        ({"columns": [{"data": 3}]}, "data must be"),
        ({"columns": [{"data": "digits", "methods": ["rmee"]}]}, "did you mean 'rme'"),
        ({"columns": [{"data": "digits", "methods": "rme"}]}, "must be a list"),
        ({"methods": {}}, "at least one"),
        ({"methods": [{"order": 3}]}, "has no name"),
        ({"methods": [{"name": "rmee"}]}, "did you mean 'rme'"),
        ({"methods": [{"name": "rme", "ordr": 3}]}, "did you mean 'order'"),
        ({"methods": [{"name": "rme", "order": "three"}]}, "order must be a whole number"),
        ({"methods": [{"name": "rme", "continued": 1}]}, "continued must be true or false"),
        ({"methods": [{"name": "rme", "label": 1}]}, "label must be text"),
        ({"methods": [{"name": "rme", "seed": 1}]}, "restarts in .protocol. chooses it"),
        ({"methods": [{"name": "vae", "epochs": 3}]}, "takes no options of its own .epochs"),
        ({"title": 3}, "title must be text"),
        ({"protocol": 3}, "protocol must be a table"),
    ],
)
def test_what_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        grid(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"methods": [{"name": "rme", "order": [2, 99]}]}, r"RME\(99\) digits 2.*1 to 16"),
        ({"columns": [{"data": "digits", "network": "convv"}]}, "did you mean 'conv'"),
        ({"columns": [{"data": "digits", "likelihood": "gausian"}]}, "did you mean 'gaussian'"),
    ],
)
def test_impossible_options_are_found_before_the_first_run(change, message):
    found = grid(**change)
    with pytest.raises(ConfigError, match=message):
        check(found.jobs)


def test_files(tmp_path):
    assert digests(read_grid(write_grid(tmp_path, data="digits"))) == digests(grid())
    assert read_grid(tmp_path / "small.toml").name == "small"
    (tmp_path / "bad.toml").write_text("= 3")
    with pytest.raises(ConfigError, match=r"bad.toml is not TOML"):
        read_grid(tmp_path / "bad.toml")
    with pytest.raises(ConfigError, match="cannot read"):
        read_grid(tmp_path / "nowhere.toml")
    (tmp_path / "bad.toml").write_text("[protocol]\nsplit = 3\n")
    with pytest.raises(ConfigError, match=r"bad.toml: unknown key"):
        read_grid(tmp_path / "bad.toml")


def test_nothing_loads_torch_before_it_is_needed():
    names = ["driver", "cluster", "worker", "view", "store"]
    code = "import sys, " + ", ".join(f"recmix.experiments.{name}" for name in names)
    code += "; assert 'torch' not in sys.modules and 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_row_may_start_from_another_and_be_scored_refined():
    methods = [
        {"name": "vae", "label": "DECODER", "after": "VAE", "refine": 2},
        {
            "name": "vae",
            "label": "CHAIN",
            "after": "DECODER",
            "component": "residual",
            "refined": [2, 4],
        },
    ]
    jobs = {job.row: job for job in grid(methods=methods).jobs[:4]}
    assert list(jobs) == ["VAE", "VAE+", "DECODER", "CHAIN"]
    assert jobs["DECODER"].depends == jobs["VAE"].digest
    assert jobs["CHAIN"].depends == jobs["DECODER"].digest
    assert jobs["CHAIN"].definition["options"]["component"] == "residual"
    assert [key for key in jobs["CHAIN"].evaluate if "refine" in key] == [
        f"{key}/refine {steps}" for key in jobs["VAE"].evaluate for steps in (2, 4)
    ]
    with pytest.raises(ConfigError, match="'NOBODY', which is no row before it: there are VAE, VAE"):
        grid(methods=[{"name": "rme", "after": "NOBODY"}])
    with pytest.raises(ConfigError, match="refined must be whole numbers of 1 or more"):
        grid(methods=[{"name": "rme", "refined": [0]}])
    with pytest.raises(ConfigError, match="calibrated must be true or false, got 2"):
        grid(methods=[{"name": "rme", "calibrated": 2}])
    with pytest.raises(ConfigError, match="after must be text"):
        grid(methods=[{"name": "rme", "after": 3}])


def test_a_flow_cannot_be_calibrated_and_a_grid_says_so_before_it_begins():
    wide = grid(methods=[{"name": "iaf", "calibrated": True}])
    with pytest.raises(ConfigError, match=r"IAF.*only Gaussians and mixtures of them can be calibrated"):
        check(wide.jobs)
    check(grid(methods=[{"name": "rme", "calibrated": True}, {"name": "iaf"}]).jobs)


def test_reuse_is_part_of_a_run_where_steps_are_taken_while_it_trains():
    def made(**options):
        rows = [{"name": "vae", "label": "R", "after": "VAE", "warmup": 1, **options}]
        return next(job for job in grid(methods=rows).jobs if job.label == "R")

    assert made(reuse=0).digest == made(reuse=2).digest == made().digest
    assert made(starts=4).digest == made().digest
    for taken in ({"refine": 1}, {"distil": 0.5}):
        job = made(**taken)
        assert job.digest == made(**taken, reuse=2).digest != made(**taken, reuse=0).digest
        assert job.digest == made(**taken, starts=1).digest != made(**taken, starts=4).digest
    old = {**job.definition, "training": dict(job.definition["training"])}
    old["training"].pop("reuse")  # as it was before there was such an option: plain steps
    plain = {**job.definition, "training": job.definition["training"] | {"reuse": 0}}
    assert digest_of(old) == digest_of(plain) != job.digest


@pytest.mark.parametrize("option", [{"optimizer": "adam"}, {"starts": 1}, {"widen_tilt": 0.0}])
def test_an_option_that_came_later_leaves_the_names_of_earlier_runs(option):
    (job,) = [job for job in grid().jobs if job.row == "VAE" and (job.split, job.restart) == (0, 0)]
    earlier = dict(job.definition["training"])
    assert all(earlier.pop(name) == value for name, value in option.items())
    assert digest_of({**job.definition, "training": earlier}) == job.digest


def test_one_training_that_is_asked_for_twice_is_measured_in_both_ways():
    refined = {"name": "vae", "continued": True, "refined": [1], "starts": 3}
    jobs = {job.row: job for job in grid(methods=[refined]).jobs if job.split == job.restart == 0}
    assert jobs["VAE+"].evaluate[-2:] == ("test/3/refine 1", "val/3/refine 1")
    assert jobs["VAE+"].definition["training"]["starts"] == 3
    both = [{**refined, "label": "A"}, {**refined, "label": "B", "starts": 2}]
    with pytest.raises(ConfigError, match="one training, to be scored with different reuse or starts"):
        grid(methods=both)
    chain = {"name": "vae", "continued": True, "component": "residual", "label": "A"}
    with pytest.raises(ConfigError, match="one training, to be scored with different reuse or starts"):
        grid(methods=[chain, {**chain, "label": "B", "starts": 2}])
    climbed = {**chain, "label": "B", "refined": [2], "reuse": 4}  # of no account to the other
    one = next(job for job in grid(methods=[chain, climbed]).jobs if job.row == "A")
    assert one.evaluate[-1] == "val/3/refine 2"
    assert one.definition["training"]["reuse"] == 4
