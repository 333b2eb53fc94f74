"""Presets: valid files, the run folder they make, and how they are resumed."""

import json
import os
import signal

import numpy as np
import pytest
import torch
from cases.commands import call
from cases.training import images

import recmix
from recmix.errors import ConfigError, RunError
from recmix.runs.folder import Run
from recmix.training.presets import presets, read_preset
from recmix.training.presets.read import parse

SHORT = {"latent": 2, "vae_epochs": 1, "device": "cpu"}
TWO = """\
title = "Two"
[[stages]]
name = "first"
method = "vae"
epochs = 2
[[stages]]
name = "second"
method = "rme"
order = 2
epochs = 3
learning_rate = 1e-3
"""


@pytest.fixture(scope="module")
def data():
    return recmix.data.from_arrays(images(), x_test=images(20, seed=1))


@pytest.fixture
def two(tmp_path):
    file = tmp_path / "two.toml"
    file.write_text(TWO)
    return file


def weights(folder):
    return {k: v.clone() for k, v in recmix.load(folder).method.state_dict().items()}


def short(preset):
    """The same preset with stages of one epoch."""
    content = read_preset(preset).to_json()
    for stage in content["stages"]:
        stage["epochs"] = 1
    return parse(content, preset, preset)


def test_paper_preset_has_the_options_of_the_paper():
    vae, mixture = read_preset("paper").stages
    assert (vae.method, vae.options) == ("vae", {"learning_rate": 5e-4, "epochs": 2000, "patience": 50})
    assert (mixture.method, mixture.after) == ("rme", "vae")
    expected = {"order": 5, "bound": 500.0, "epochs": 20, "learning_rate": 1e-5}
    assert mixture.options == expected


@pytest.mark.parametrize("name", presets())
def test_last_stage_is_the_run(name, data, tmp_path):
    preset = short(name)
    model = recmix.fit_preset(
        preset, data, latent=2, out=tmp_path / "run", device=torch.device("cpu"), seed=3
    )
    loaded = recmix.load(tmp_path / "run", device="cpu")
    assert loaded.spec.method == preset.stages[-1].method
    assert torch.equal(loaded.posterior(images(4)).mean, model.posterior(images(4)).mean)
    before = None
    for stage in preset.stages[:-1]:
        spec = Run(tmp_path / "run" / stage.name).spec()
        assert spec.training.seed == 3
        assert Run(tmp_path / "run" / stage.name).status()["status"] == "done"
        assert (spec.init or {}).get("run") == before
        before = str((tmp_path / "run" / stage.name).resolve())
    assert Run(tmp_path / "run").spec().init["run"] == before
    assert loaded.refined(2).log_likelihood(images(4), samples=3).isfinite().all()


def test_best_preset_trains_the_encoder_in_its_last_stage(data, tmp_path):
    recmix.fit_preset(short("best"), data, latent=2, out=tmp_path, device="cpu")
    vae, residual = Run(tmp_path / "vae").spec(), Run(tmp_path).spec()
    assert (vae.training.learning_rate, vae.training.schedule) == (1e-3, "cosine")
    assert residual.training.train == "encoder"
    assert residual.training.augment == 0.3
    assert residual.method == "residual"
    was, now = weights(tmp_path / "vae"), weights(tmp_path)
    decoder = [name for name in was if name.startswith("model.decoder.")]
    assert decoder
    assert all(torch.equal(was[name], now[name]) for name in decoder)


def test_best_preset_leaves_out_what_counts_do_not_allow(capsys):
    counts = np.random.default_rng(0).poisson(2, (40, 6)).astype(np.float32)
    model = recmix.fit_preset(short("best"), counts, **SHORT | {"progress": True})
    said = capsys.readouterr().err
    assert "the option augment is left out, because it is for images" in said
    assert "the option decoder_samples is left out, because the poisson likelihood" in said
    assert model.spec.model.likelihood != "gaussian"
    assert (model.spec.training.augment, model.spec.training.decoder_samples) == (0, 0)
    with pytest.raises(ConfigError, match="decoder_samples needs"):
        recmix.fit_preset(short("best"), counts, decoder_samples=0.3, **SHORT)


def test_preset_equals_its_stages_one_by_one(two, data):
    whole = recmix.fit_preset(two, data, **SHORT)
    first = recmix.fit("vae", data, latent=2, epochs=1, device="cpu")
    again = recmix.fit("rme", data, order=2, epochs=3, learning_rate=1e-3, init=first, device="cpu")
    for name, value in again.method.state_dict().items():
        assert torch.equal(value, whole.method.state_dict()[name]), name


def test_options_apply_to_the_last_stage_and_some_to_all(two, data, tmp_path):
    recmix.fit_preset(
        two, data, **SHORT, out=tmp_path / "run", epochs=1, order=3, seed=5, dtype="float64"
    )
    first, last = Run(tmp_path / "run" / "first").spec(), Run(tmp_path / "run").spec()
    assert (first.training.epochs, last.training.epochs) == (1, 1)
    assert last.options["order"] == 3
    assert first.training.seed == last.training.seed == 5
    assert first.training.dtype == last.training.dtype == "float64"


def test_first_stage_can_train_its_own_vae(data, tmp_path):
    one = {"stages": [{"name": "mixture", "method": "rme", "order": 2, "epochs": 1}]}
    recmix.fit_preset(parse(one, "one", "one"), data, **SHORT, out=tmp_path)
    assert Run(tmp_path / "vae").spec().training.epochs == 1


def test_stage_can_start_from_any_earlier_stage(data, tmp_path):
    text = TWO + '[[stages]]\nname = "third"\nmethod = "vae"\nafter = "first"\nepochs = 1\n'
    (tmp_path / "three.toml").write_text(text)
    recmix.fit_preset(tmp_path / "three.toml", data, **SHORT, out=tmp_path / "run")
    assert Run(tmp_path / "run").spec().init["run"] == str((tmp_path / "run" / "first").resolve())


def test_user_networks(two, data):
    encoder = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4))
    decoder = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.Unflatten(1, (1, 8, 8)))
    model = recmix.fit_preset(two, data, **SHORT, epochs=1, encoder=encoder, decoder=decoder)
    assert model.spec.model.network == "own"
    assert model.latent_model.decoder is decoder


# --- resume -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["first", "second"])
def test_resume_after_signal_gives_same_bits(stage, two, tmp_path, monkeypatch, capsys):
    from recmix.training.job import Job

    np.save(tmp_path / "mine.npy", images(50))
    words = ("train", "--preset", two, "--data", tmp_path / "mine.npy", "--latent", "2")
    words += ("--vae-epochs", "3", "--device", "cpu", "--out")
    assert call(*words, tmp_path / "whole") == 0
    run = tmp_path / "run"
    folder = run / "first" if stage == "first" else run
    plain = Job.end_epoch

    def end_epoch(self, validation):
        row = plain(self, validation)
        if self.run.folder == folder and self.state.epoch == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return row

    with monkeypatch.context() as patch:
        patch.setattr(Job, "end_epoch", end_epoch)
        assert call(*words, run) == 130
    message = capsys.readouterr().err
    assert f"stage '{stage}'" in message
    assert f"recmix train --resume --out {run}\n" in message
    assert Run(run).exists == (stage == "second")
    before = (run / "first" / "checkpoint.safetensors").stat().st_mtime_ns
    assert call("train", "--resume", "--out", run) == 0
    after = (run / "first" / "checkpoint.safetensors").stat().st_mtime_ns
    assert (after == before) == (stage == "second")
    for part in (run, run / "first"):
        whole = tmp_path / "whole" / part.relative_to(run)
        assert Run(part).history() == Run(whole).history()
        for name in ("weights.safetensors", "checkpoint.safetensors"):
            assert (part / name).read_bytes() == (whole / name).read_bytes()
    again = (run / "weights.safetensors").stat().st_mtime_ns
    assert call("train", "--resume", "--out", run) == 0
    assert (run / "weights.safetensors").stat().st_mtime_ns == again


def test_resume_with_more_epochs(two, data, tmp_path):
    recmix.fit_preset(two, data, **SHORT, out=tmp_path / "run", epochs=1)
    longer = recmix.fit_preset(two, data, **SHORT, out=tmp_path / "run", epochs=2, resume=True)
    assert len(longer.history) == 2
    with pytest.raises(RunError, match="stage 'second'.*order = 2, not 3"):
        recmix.fit_preset(two, data, **SHORT, out=tmp_path / "run", order=3, epochs=2, resume=True)


def test_existing_run_is_replaced_only_with_overwrite(two, data, tmp_path):
    run = tmp_path / "run"
    recmix.fit_preset(two, data, **SHORT, out=run, epochs=1)
    with pytest.raises(RunError, match="already holds a run"):
        recmix.fit_preset(two, data, **SHORT, out=run, epochs=1)
    with pytest.raises(ConfigError, match="exclude each other"):
        recmix.fit_preset(two, data, out=run, resume=True, overwrite=True)
    recmix.fit_preset(two, data, **SHORT, out=run, epochs=1, order=3, overwrite=True)
    assert Run(run).spec().options["order"] == 3
    recmix.fit("vae", data, latent=2, epochs=1, out=run, overwrite=True)
    assert not (run / "preset.json").exists()


def test_overwrite_replaces_the_vae_of_a_first_stage(data, tmp_path):
    stages = 'name = "mixture"\nmethod = "rme"\norder = 2\nepochs = 1\n'
    (tmp_path / "own.toml").write_text(f"[[stages]]\n{stages}[[stages]]\nname = 'b'\nmethod = 'vae'\n")
    given = SHORT | {"epochs": 1, "out": tmp_path / "run"}
    recmix.fit_preset(tmp_path / "own.toml", data, **given)
    assert Run(tmp_path / "run" / "mixture" / "vae").exists
    recmix.fit_preset(tmp_path / "own.toml", data, **given, seed=3, overwrite=True)
    assert Run(tmp_path / "run" / "mixture" / "vae").spec().training.seed == 3


@pytest.mark.parametrize(
    "content",
    ["[]", "{}", '{"format": 99}', '{"format": 1, "name": "x"}', '{"format": 2, "name": "x"}', "{"],
)
def test_damaged_preset_file_in_a_run_is_named(content, tmp_path, capsys):
    (tmp_path / "preset.json").write_text(content)
    assert call("train", "--resume", "--out", tmp_path) == 2
    assert "preset.json" in capsys.readouterr().err


# --- files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([], "at least one"),
        ("vae", "at least one"),
        ([{"name": "a"}], "stage 'a': method must be text"),
        ([{"method": "vae"}], "stage 1: name must be text"),
        ([{"name": "a", "method": "vea"}], "stage 'a': unknown method 'vea': did you mean 'vae'"),
        (
            [{"name": "a", "method": "vae", "epohcs": 3}],
            "stage 'a': unknown option for vae 'epohcs': did you mean 'epochs'",
        ),
        ([{"name": "a", "method": "vae", "order": 3}], "unknown option for vae 'order'"),
        ([{"name": "a", "method": "vae", "epochs": "many"}], "stage 'a': epochs must be a whole number"),
        ([{"name": "a", "method": "vae", "epochs": -1}], "stage 'a': epochs must be at least 1, got -1"),
        ([{"name": "a", "method": "vae", "schedule": "cosin"}], "did you mean 'cosine'"),
        ([{"name": "a", "method": "vae"}, {"name": "a", "method": "vae"}], "stage of this name"),
        ([{"name": "a", "method": "vae", "after": "a"}], r"before it \(none, for it is the first\)"),
        (
            [{"name": "a", "method": "vae"}, {"name": "b", "method": "rme", "after": "c"}],
            r"stage 'b': after must name a stage before it \(a\), got 'c'",
        ),
        ([{"name": "../a", "method": "vae"}], "name is that of a folder"),
        ([{"name": "..", "method": "vae"}], "name is that of a folder"),
        ([{"name": "/a", "method": "vae"}], "name is that of a folder"),
        ([{"name": "tensorboard", "method": "vae"}], "not tensorboard"),
    ],
)
def test_error_names_the_stage(stages, message):
    with pytest.raises(ConfigError, match=message):
        parse({"stages": stages}, "mine", "mine.toml")


def test_unknown_keys_and_wrong_titles_are_refused():
    with pytest.raises(ConfigError, match="unknown key 'stage': did you mean 'stages'"):
        parse({"stage": []}, "mine", "mine.toml")
    with pytest.raises(ConfigError, match="title must be text"):
        parse({"title": 3, "stages": [{"name": "a", "method": "vae"}]}, "mine", "mine.toml")


def test_option_that_the_last_stage_does_not_have_is_refused(data, tmp_path):
    with pytest.raises(ConfigError, match="best, stage 'residual': unknown option for residual 'order'"):
        recmix.fit_preset("best", data, order=3, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_invalid_option_is_found_before_the_first_stage(data, tmp_path):
    with pytest.raises(ConfigError, match="best, stage 'residual': corrections .* got 9"):
        recmix.fit_preset("best", data, corrections=9, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["..", "../pyproject", "best.toml", "./nothing", "", "bset"])
def test_unknown_names_are_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="unknown preset|cannot read"):
        read_preset(name)
    with pytest.raises(ConfigError, match="must be a name"):
        read_preset(3)


def test_path_is_the_users_own_file(two, monkeypatch):
    (two.parent / "below").mkdir()
    monkeypatch.chdir(two.parent / "below")
    assert read_preset("../two.toml").title == "Two"
    (two.parent / "no.toml").write_text("a = [")
    with pytest.raises(ConfigError, match="not TOML"):
        read_preset("../no.toml")


# --- the command line --------------------------------------------------------------------------------


def test_presets_command_lists_and_prints_presets(tmp_path, capsys):
    assert call("presets") == 0
    listed = capsys.readouterr().out
    assert "best" in listed
    assert "paper" in listed
    assert call("presets", "best") == 0
    (tmp_path / "mine.toml").write_text(capsys.readouterr().out)
    assert read_preset(tmp_path / "mine.toml").stages == read_preset("best").stages
    assert call("presets", "--json") == 0
    assert parse(json.loads(capsys.readouterr().out)["best"], "best", "") == read_preset("best")
    assert call("presets", "bset") == 2
    assert "did you mean 'best'" in capsys.readouterr().err


def test_preset_excludes_a_method(tmp_path, capsys):
    words = ("train", "--data", "digits", "--preset", "best", "--out", tmp_path / "run")
    assert call(*words, "--method", "vae") == 2
    assert "leave --method or --preset out" in capsys.readouterr().err
    assert call(*words, "--init", tmp_path) == 2
    assert "does not hold a run" in capsys.readouterr().err


def test_preset_in_a_configuration_file(two, tmp_path):
    np.save(tmp_path / "mine.npy", images(50))
    config = tmp_path / "run.toml"
    config.write_text(f'preset = "{two}"\ndata = "{tmp_path}/mine.npy"\nlatent = 2\nvae_epochs = 1\n')
    assert call("train", "--config", config, "--epochs", "1", "--out", tmp_path / "run") == 0
    assert Run(tmp_path / "run").spec().options["order"] == 2


def test_own_encoder_alone_takes_the_built_in_decoder():
    from recmix.model.networks import make_encoder

    encoder = make_encoder("dense", (1, 8, 8), 2)
    options = {"latent": 2, "vae_epochs": 1, "epochs": 1, "progress": False}
    model = recmix.fit_preset("paper", images(40, size=8), encoder=encoder, **options)
    assert model.spec.model.decoder_network == "conv"
