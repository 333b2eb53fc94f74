"""From a file to runs: which runs, their names, and what is refused."""

import copy
import dataclasses
import json
import random
import subprocess
import sys

import pytest
from cases.grids import content, grid, write_grid
from hypothesis import given, settings
from hypothesis import strategies as st

from recmix.errors import ConfigError
from recmix.experiments.grid import check, digest_of, expand, read_grid
from recmix.methods.importance_weighted import ImportanceWeighted
from recmix.methods.recursive import RecursiveMixture
from recmix.methods.registry import METHODS
from recmix.model.options import option
from recmix.runs.training_options import Training
from recmix.training.arguments import GROUPS

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


def by_row(**changes):
    """The jobs of the first split and restart of the small grid."""
    return {job.row: job for job in grid(**changes).jobs if job.split == job.restart == 0}


def test_jobs_of_a_grid():
    found = expand(FULL, "full")
    rows = {job.row for job in found.jobs}
    assert rows == {"VAE", "VAE+", "SA(1)", "SA(2)", "RME(2)", "RME(3)"}
    assert len(found.jobs) == 2 * 2 * (4 * 6 + 4)  # splits, restarts, columns times rows
    assert not found.notes
    job = next(j for j in found.jobs if j.row == "SA(2)" and j.column["data"] == "binary-mnist")
    wanted = {"data": "binary-mnist", "latent": 50, "likelihood": "bernoulli"}
    wanted |= {"network": "dense", "decoder_network": "dense"}
    assert wanted.items() <= job.column.items()
    assert job.evaluate == ("test/100", "test/500", "val/50")
    assert job.definition["options"] == {"steps": 2, "step_size": 0.01}  # no defaults
    assert job.definition["training"] == {"epochs": 2, "learning_rate": 1e-5}
    assert (job.definition["split"], job.definition["restart"]) == (job.split, job.restart)
    base = next(j for j in found.jobs if j.digest == job.depends)
    assert (base.row, base.column, base.split) == ("VAE", job.column, job.split)
    assert base.definition["training"]["schedule"] == "cosine"
    assert base.definition["training"]["learning_rate"] == 5e-4  # the default of the first stage


def test_each_vae_is_trained_once_and_before_runs_that_start_from_it():
    found = expand(FULL, "full")
    place = {job.digest: i for i, job in enumerate(found.jobs)}
    bases = [job for job in found.jobs if job.depends is None]
    assert len(bases) == 2 * 2 * 5
    assert {job.row for job in bases} == {"VAE"}
    for job in found.jobs:
        assert job.depends is None or place[job.depends] < place[job.digest]


def test_every_grid_has_the_control():
    found = grid()
    assert [job.row for job in found.jobs] == ["VAE", "VAE+", "RME(2)"]
    assert any("VAE+ is not in the file and was added" in note for note in found.notes)
    plus, rme = found.jobs[1:]
    assert plus.definition["training"] == rme.definition["training"]
    assert plus.depends == rme.depends == found.jobs[0].digest
    only = grid(columns=[{"data": "digits", "latent": 2, "methods": ["rme"]}])
    assert digests(only) == digests(found)


def test_a_grid_has_the_first_stages_that_its_methods_name(monkeypatch):
    """Methods that start from another method than the VAE: it is added, with its control."""

    class Other(RecursiveMixture):
        name = "other"
        starts_from = "iwae"

    class Third(RecursiveMixture):
        name = "third"
        starts_from = "other"

    for cls in (Other, Third):
        monkeypatch.setitem(METHODS, cls.name, cls)
    found = by_row(methods=[{"name": "third", "order": 2}, {"name": "rme", "order": 2}])
    rows = {job.digest: row for row, job in found.items()}
    assert {row: rows.get(job.depends) for row, job in found.items()} == {
        "IWAE(5)": None,
        "IWAE+(5)": "IWAE(5)",
        "OTHER(5)": "IWAE(5)",
        "OTHER+(5)": "OTHER(5)",
        "VAE": None,
        "VAE+": "VAE",
        "THIRD(2)": "OTHER(5)",
        "RME(2)": "VAE",
    }


def test_a_run_that_appears_twice_is_done_once():
    found = grid(
        methods=[{"name": "rme", "order": [2, 2, 3]}, {"name": "rme", "order": 2}],
        columns=[{"data": "digits", "latent": [2, 3]}, {"data": "digits", "latent": 2}],
    )
    assert len(found.jobs) == len(set(digests(found))) == 2 * 4
    assert any("more than once" in note for note in found.notes)


def test_the_same_run_in_two_grids_has_one_digest():
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
def test_every_value_of_a_definition_changes_its_digest(definition, data):
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
        (("columns", 0, "size"), 6),
        (("protocol", "splits"), [3]),
        (("protocol", "restarts"), [3]),
        (("methods", 0, "order"), 3),
        (("methods", 0, "bound"), 100.0),
        (("methods", 0, "learning_rate"), 1e-6),
        (("methods", 0, "refine"), 1),
    ],
)
def test_changing_what_defines_a_result_changes_the_digest(where, value):
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
            "methods": [{"name": "rme", "order": 2, "bound": 500, "jitter": 0.0, "train": "all"}]
        },  # defaults
        {"methods": [{"name": "rme", "order": 2, "refined": [2], "reuse": 0, "restarts": 3}]},
        {"methods": [{"name": "rme", "order": 2, "calibrated": "noise"}]},
        {"columns": [{"data": "digits", "latent": 2, "network": "conv", "likelihood": "gaussian"}]},
        {
            "budget": {
                "first": {"epochs": 1, "batch_size": 64, "checkpoint_every": 5, "tensorboard": True},
                "second": {"epochs": 1, "batch_size": 64, "learning_rate": 0.0001},
            }
        },
    ],
)
def test_changing_anything_else_leaves_the_digest(change):
    assert digests(grid(**change)) == digests(grid())


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaterTraining(Training):
    """The options of training in a later version."""

    clip_value: float = option(0.0, "Clip each value of the gradient to this; 0 does not clip.")


class LaterMixture(RecursiveMixture):
    """A method in a later version."""

    def __init__(self, model, encoder, *, order: int = 5, bound: float = 500.0, eps_max: float = 0.1,
                 clip_value: float = 0.0) -> None:  # fmt: skip
        super().__init__(model, encoder, order=order, bound=bound, eps_max=eps_max)


@pytest.mark.parametrize("group", ["training", "method"])
def test_a_new_option_leaves_all_digests(group, monkeypatch):
    """Options are defined in one place: nothing but the option is added here."""
    before = digests(expand(FULL, "full")), digests(grid())
    with pytest.raises(ConfigError, match="unknown option for rme 'clip_value'"):
        grid(methods=[{"name": "rme", "order": 2, "clip_value": 0.0}])
    if group == "training":
        monkeypatch.setitem(GROUPS, "training", LaterTraining)
        monkeypatch.setattr("recmix.experiments.parts.Training", LaterTraining)
    else:
        monkeypatch.setitem(METHODS, "rme", LaterMixture)
    assert (digests(expand(FULL, "full")), digests(grid())) == before
    same = grid(methods=[{"name": "rme", "order": 2, "clip_value": 0.0}])
    assert digests(same) == before[1]
    other = grid(methods=[{"name": "rme", "order": 2, "clip_value": 0.5}])
    assert digests(other)[:2] == before[1][:2]
    assert digests(other)[2] != before[1][2]
    group = "options" if group == "method" else group
    assert other.jobs[2].definition[group]["clip_value"] == 0.5


def test_the_format_is_part_of_the_digest(monkeypatch):
    before = digests(grid())
    monkeypatch.setattr("recmix.experiments.grid.FORMAT", 3)
    assert not set(digests(grid())) & set(before)


def test_a_method_keeps_its_factor_of_the_learning_rate():
    found = grid(methods=[{"name": "bvi-er1"}, {"name": "bvi-er2", "learning_rate": 1e-3}])
    rates = {job.label: job.definition["training"]["learning_rate"] for job in found.jobs}
    assert rates["VAE+"] == 1e-4
    assert rates["BVI-ER1"] == pytest.approx(1e-5)
    assert rates["BVI-ER2"] == 1e-3


def test_methods_without_a_first_stage_start_from_random_weights_unless_continued():
    assert ImportanceWeighted.starts_from is None
    found = by_row(methods=[{"name": "iwae", "samples": 5}, {"name": "iwae", "continued": True}])
    assert found["IWAE(5)"].depends is None
    assert found["IWAE(5)"].definition["training"]["learning_rate"] == 5e-4
    assert found["IWAE from VAE(5)"].depends == found["VAE"].digest


def test_labels_show_options_that_are_lists():
    found = grid(methods=[{"name": "rme", "order": [2, 3], "bound": [10, 500]}])
    rows = {job.row for job in found.jobs} - {"VAE", "VAE+"}
    assert rows == {f"RME bound={b}({o})" for b in (10, 500) for o in (2, 3)}
    with pytest.raises(ConfigError, match=r"2 different runs are all RME\(2\).*its own label"):
        grid(methods=[{"name": "rme", "order": 2}, {"name": "rme", "order": 2, "bound": 10}])
    shares = {"name": "vae", "continued": True, "train": "encoder", "augment": [0.1, 0.2]}
    rows = {job.row for job in grid(methods=[shares]).jobs} - {"VAE", "VAE+"}
    assert rows == {"VAE+ train=encoder augment=0.1", "VAE+ train=encoder augment=0.2"}
    rows = {job.row for job in grid(methods=[{**shares, "label": "MINE"}]).jobs} - {"VAE", "VAE+"}
    assert rows == {"MINE augment=0.1", "MINE augment=0.2"}


def test_default_labels_say_what_a_run_is():
    methods = [
        {"name": "vae", "continued": True, "refine": 2},
        {"name": "vae", "label": "LONG", "after": "VAE", "keep_weights": "last"},
        {"name": "residual", "after": "LONG"},
        {"name": "rme", "order": 2},
        {"name": "rme", "order": 3, "after": "RME(2)"},
    ]
    rows = ["VAE", "VAE+", "VAE+ refine=2", "LONG", "RESIDUAL from LONG(3)", "RME(2)", "RME+(3)"]
    assert list(by_row(methods=methods)) == rows


def test_own_images(tmp_path):
    found = grid(columns=[{"data": str(tmp_path / "mine.npy"), "latent": 2, "size": 28}])
    assert found.jobs[0].column["data"] == str((tmp_path / "mine.npy").resolve())
    assert found.jobs[0].column["size"] == 28
    assert "likelihood" not in found.jobs[0].definition["model"]  # known when the images are read
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
        ({"budget": {"first": {"epochs": -3}}}, "epochs must be at least 1"),
        ({"budget": {"first": {"epochs": "many"}}}, "epochs must be a whole number"),
        ({"budget": {"first": {"seed": 3}}}, "unknown training option in first"),
        ({"budget": {"second": {"schedule": "cosin"}}}, "did you mean 'cosine'"),
        ({"columns": []}, "at least one"),
        ({"columns": [{"latent": 3}]}, "has no data"),
        ({"columns": [{"data": "mnits"}]}, "did you mean 'mnist'"),
        ({"columns": [{"data": "digits", "latnet": 3}]}, "did you mean 'latent'"),
        ({"columns": [{"data": "digits", "latent": 0}]}, "latent must be at least 1"),
        ({"columns": [{"data": "digits", "latent": []}]}, "empty list"),
        ({"columns": [{"data": "digits", "size": 0}]}, "size must be whole numbers of 1"),
        ({"columns": [{"data": 3}]}, "data must be"),
        ({"columns": [{"data": "digits", "methods": ["rmee"]}]}, "did you mean 'rme'"),
        ({"columns": [{"data": "digits", "methods": "rme"}]}, "must be a list"),
        ({"methods": {}}, "at least one"),
        ({"methods": [{"order": 3}]}, "has no name"),
        ({"methods": [{"name": "rmee"}]}, "did you mean 'rme'"),
        ({"methods": [{"name": "rme", "ordr": 3}]}, "did you mean 'order'"),
        ({"methods": [{"name": "rme", "order": "three"}]}, "order must be a whole number"),
        ({"methods": [{"name": "rme", "continued": 1}]}, "continued must be true or false"),
        ({"methods": [{"name": "rme", "calibrated": 2}]}, 'true, false or "noise", got 2'),
        ({"methods": [{"name": "rme", "calibrated": "all"}]}, "true, false or \"noise\", got 'all'"),
        ({"methods": [{"name": "rme", "noise": 1.5}]}, 'calibrated = "noise" chooses it on validation'),
        ({"columns": [{"data": "digits", "widths": "wide"}]}, "widths must be whole numbers such as"),
        ({"methods": [{"name": "rme", "label": 1}]}, "label must be text"),
        ({"methods": [{"name": "rme", "after": 3}]}, "after must be text"),
        ({"methods": [{"name": "rme", "after": "X"}]}, r"'X', but .* no such row .* VAE, VAE\+"),
        ({"methods": [{"name": "rme", "refined": [0]}]}, "refined must be whole numbers of 1 or more"),
        ({"methods": [{"name": "rme", "restarts": 10}]}, "restarts must be at least 1 and at most 9"),
        ({"methods": [{"name": "rme", "seed": 1}]}, "restarts in .protocol. chooses it"),
        ({"methods": [{"name": "rme", "latent": 1}]}, "it belongs to ..columns.."),
        ({"methods": [{"name": "rme", "scale": 1.5}]}, "calibrated = true chooses it on validation"),
        ({"methods": [{"name": "vae", "epochs": 3}]}, "takes no options of its own .epochs"),
        ({"methods": [{"name": "vae", "refine": 3}]}, "takes no options of its own .refine"),
        ({"title": 3}, "title must be text"),
        ({"protocol": 3}, "protocol must be a table"),
    ],
)
def test_invalid_content_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        grid(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"methods": [{"name": "rme", "order": [2, 99]}]}, r"RME\(99\) digits 2.*1 to 16"),
        ({"columns": [{"data": "digits", "network": "convv"}]}, "did you mean 'conv'"),
        ({"columns": [{"data": "digits", "likelihood": "gausian"}]}, "did you mean 'gaussian'"),
        (
            {"methods": [{"name": "iaf", "calibrated": True}]},
            "IAF.*only Gaussians and mixtures of Gaussians can be calibrated",
        ),
        (
            {
                "columns": [{"data": "digits", "latent": 2, "likelihood": "poisson"}],
                "methods": [{"name": "rme", "calibrated": "noise"}],
            },
            "RME.*the poisson likelihood has no noise that can be calibrated: use calibrated = true",
        ),
    ],
)
def test_impossible_options_are_found_before_the_first_run(change, message):
    found = grid(**change)
    with pytest.raises(ConfigError, match=message):
        check(found.jobs)


def test_possible_options_pass_the_check():
    check(grid(methods=[{"name": "rme", "calibrated": "noise"}, {"name": "iaf"}]).jobs)


def test_grid_files(tmp_path):
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


def test_importing_does_not_load_torch():
    names = ["driver", "cluster", "worker", "view", "store"]
    code = "import sys, " + ", ".join(f"recmix.experiments.{name}" for name in names)
    code += "; assert 'torch' not in sys.modules and 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_row_can_start_from_another_row():
    methods = [
        {"name": "vae", "label": "DECODER", "after": "VAE", "refine": 2},
        {"name": "residual", "label": "CHAIN", "after": "DECODER"},
    ]
    found = by_row(methods=methods)
    assert list(found) == ["VAE", "VAE+", "DECODER", "CHAIN(3)"]
    assert found["DECODER"].depends == found["VAE"].digest
    assert found["CHAIN(3)"].depends == found["DECODER"].digest


def test_score_names_hold_the_whole_inference():
    methods = [
        {"name": "vae", "continued": True, "refined": [2, 4], "reuse": 0, "calibrated": True},
        {"name": "vae", "label": "R", "after": "VAE", "refine": 2, "refined": [1], "restarts": 3},
        {"name": "residual", "restarts": 4},
    ]
    found = by_row(methods=methods)
    plus = ["", *(f"/gauss-newton,refine={steps},reuse=0,restarts=1,checks=1" for steps in (2, 4))]
    assert found["VAE+"].evaluate == (
        *(f"test/3{how}" for how in plus),
        *(f"test/3{how}/calibrated" for how in plus),
        *(f"val/3{how}" for how in plus),
    )
    refined = [f"gauss-newton,refine={steps},reuse=2,restarts=3,checks=1" for steps in (2, 1)]
    keys = tuple(f"{part}/3/{how}" for part in ("test", "val") for how in refined)
    assert found["R"].evaluate == keys
    assert found["RESIDUAL(3)"].evaluate == ("test/3/restarts=4", "val/3/restarts=4")


def test_noise_is_a_third_score():
    entry = {"name": "vae", "continued": True, "refined": [2], "calibrated": "noise"}
    used = ["", "/gauss-newton,refine=2,reuse=2,restarts=1,checks=1"]
    assert by_row(methods=[entry])["VAE+"].evaluate == (
        *(f"test/3{how}" for how in used),
        *(f"test/3{how}/calibrated" for how in used),
        *(f"test/3{how}/calibrated+noise" for how in used),
        *(f"val/3{how}" for how in used),
    )


def test_options_of_the_model_are_axes_and_part_of_the_name():
    priors = {"prior": ["standard", "mixture"], "network": "mlp", "widths": ["8,4", "16"]}
    jobs = grid(columns=[{"data": "digits", "latent": 2, **priors}]).jobs
    assert len(set(digests(grid(columns=[{"data": "digits", "latent": 2, **priors}])))) == 3 * 4
    titles = [job.title for job in jobs if job.row == "VAE+"]
    assert titles == [
        "VAE+ digits 2 mlp/mlp widths=(8,4) split 0 restart 0",
        "VAE+ digits 2 mlp/mlp widths=(16,) split 0 restart 0",
        "VAE+ digits 2 mlp/mlp prior=mixture widths=(8,4) split 0 restart 0",
        "VAE+ digits 2 mlp/mlp prior=mixture widths=(16,) split 0 restart 0",
    ]


def test_the_networks_for_own_data_depend_on_their_shape(tmp_path):
    columns = [{"data": str(tmp_path / "table.csv"), "latent": 2}]
    (job, *_) = grid(columns=columns).jobs
    assert job.definition["model"]["network"] == job.column["decoder_network"] == "auto"
    assert job.title == "VAE table.csv 2 split 0 restart 0"
    (job, *_) = grid(columns=[columns[0] | {"network": "conv"}]).jobs
    assert job.column["network"] == job.column["decoder_network"] == "conv"


def test_restarts_without_effect_are_not_in_score_names():
    methods = [{"name": "vae", "continued": True, "refined": [1], "restarts": 3}]
    refined = "gauss-newton,refine=1,reuse=2,restarts=3,checks=1"
    plus = by_row(methods=methods)["VAE+"]
    assert plus.evaluate == ("test/3", f"test/3/{refined}", "val/3", f"val/3/{refined}")
    assert plus.extra == {}


def test_inference_is_part_of_the_digest_only_if_it_is_used_in_training():
    def made(name="vae", **options):
        rows = [{"name": name, "label": "R", "after": "VAE", "warmup": 1, **options}]
        return next(job for job in grid(methods=rows).jobs if job.label == "R")

    for name in ("vae", "residual"):
        assert made(name, reuse=0).digest == made(name, restarts=4).digest == made(name).digest
        assert made(name, refined=[2], reuse=1, restarts=2).digest == made(name).digest
    assert made("residual", restarts=4).extra == {"restarts": 4}  # not in the digest, but applied
    for used in ({"refine": 1}, {"distil": 0.5}):
        job = made(**used)
        assert job.digest == made(**used, reuse=2).digest != made(**used, reuse=0).digest
        assert job.digest == made(**used, restarts=1).digest != made(**used, restarts=4).digest


def test_one_training_with_two_inferences_has_the_scores_of_both():
    first = {"name": "residual", "label": "A", "refined": [1], "restarts": 3}
    second = {"name": "residual", "label": "B", "refined": [2], "reuse": 4}
    found = grid(methods=[first, second])
    rows = {job.row: job for job in found.jobs}
    assert list(rows) == ["VAE", "VAE+", "A(3)"]
    assert rows["A(3)"].evaluate == (
        "test/3/restarts=3",
        "test/3/gauss-newton,refine=1,reuse=2,restarts=3,checks=1",
        "val/3/restarts=3",
        "val/3/gauss-newton,refine=1,reuse=2,restarts=3,checks=1",
        "test/3",
        "test/3/gauss-newton,refine=2,reuse=4,restarts=1,checks=1",
        "val/3",
        "val/3/gauss-newton,refine=2,reuse=4,restarts=1,checks=1",
    )
    assert any("are done once (repeated: 1)" in note for note in found.notes)
