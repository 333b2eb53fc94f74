"""`recmix doctor`: what it prints, and its exit status."""

import json
from types import SimpleNamespace

import pytest
from cases.commands import call
from rich.console import Console

from recmix._version import __version__
from recmix.commands import doctor
from recmix.commands.doctor import check_packages


@pytest.fixture
def quick(monkeypatch):
    """No model is trained."""
    monkeypatch.setattr(doctor, "_training", lambda: iter(()))
    monkeypatch.setattr(doctor, "_gpu", lambda: iter(()))


def found(capsys):
    content = json.loads(capsys.readouterr().out)
    return content, {(check["group"], check["name"]): check for check in content["checks"]}


def test_doctor_trains_a_small_model_and_says_that_all_is_well(capsys):
    assert call("doctor", "--json") == 0
    content, checks = found(capsys)
    assert content["ok"]
    assert content["recmix"] == __version__
    assert "a small VAE was trained" in checks["processor", "training"]["detail"]
    if doctor._requirements():  # recmix is installed, not only on the path
        assert checks["packages", "torch"]["state"] == "ok"
    assert checks["data", "digits"]["state"] == "ok"
    assert ("GPU", "device") in checks


def test_text(quick, capsys):
    assert call("doctor") == 0
    text = capsys.readouterr().out
    assert "everything needed works" in text
    if doctor._requirements():  # recmix is installed, not only on the path
        assert "scikit-learn" in text


def test_missing_data_sets_are_no_failure(quick, capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("RECMIX_OFFLINE", raising=False)
    assert call("doctor", "--json", "--data-root", tmp_path) == 0
    mnist = found(capsys)[1]["data", "mnist"]
    assert mnist["state"] == "missing"
    assert mnist["advice"] == "downloaded when first used"
    monkeypatch.setenv("RECMIX_OFFLINE", "1")
    assert call("doctor", "--json", "--data-root", tmp_path) == 0
    assert "not downloaded: `recmix data` lists" in found(capsys)[1]["data", "mnist"]["advice"]


def test_missing_data_sets_are_named_in_one_row_for_each_remedy(quick, capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("RECMIX_OFFLINE", raising=False)
    monkeypatch.setattr(doctor, "out", Console(width=300))
    assert call("doctor", "--data-root", tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if "missing" in line and "mnist" in line]
    assert len(rows) == 1
    assert "mnist, fashion-mnist, binary-mnist" in rows[0]
    assert "wikitext2" not in rows[0]  # its files have no download address
    assert call("doctor", "--json", "--data-root", tmp_path) == 0
    assert "not downloaded" in found(capsys)[1]["data", "wikitext2"]["advice"]
    assert call("data", "--data-root", tmp_path) == 0
    assert "No download address: celeba, wikitext2, zinc250k." in capsys.readouterr().out


def test_a_gpu_is_not_needed(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    (check,) = doctor._gpu()
    assert (check.state, check.advice) == ("note", "not needed: the CPU is used")


def test_a_needed_package_that_is_missing_or_old_is_a_failure(quick, capsys, monkeypatch):
    wanted = ["numpy>=1", "rich>=900", "no-such-package>=1", 'no-such-extra; extra == "track"']
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: wanted)
    assert call("doctor", "--json") == 1
    content, checks = found(capsys)
    assert not content["ok"]
    assert checks["packages", "rich"]["state"] == "broken"
    assert checks["packages", "rich"]["advice"] == "pip install 'rich>=900'"
    assert checks["packages", "no-such-package"]["detail"] == "is not installed"
    assert checks["extras", "track"]["state"] == "missing"
    assert ("data", "mnist") not in checks  # torch may be missing
    assert call("doctor") == 1
    assert "broken: rich, no-such-package" in capsys.readouterr().out


def test_a_training_that_fails_is_a_failure(capsys, monkeypatch):
    def fail(device):
        raise RuntimeError(f"no kernel\nfor {device}")

    monkeypatch.setattr(doctor, "_train", fail)
    assert call("doctor", "--json") == 1
    check = found(capsys)[1]["processor", "training"]
    assert (check["state"], check["detail"]) == ("broken", "RuntimeError: no kernel for cpu")


def test_extras_are_named_once_and_those_of_developers_are_not_shown():
    lines = ['numpy; extra == "a"', 'nothing-here>=2; extra == "a"', 'pytest; extra == "dev"']
    (check,) = check_packages([*lines, 'other; python_version < "3" and extra == "adapters"'])
    assert (check.name, check.state, check.detail) == ("a", "missing", "nothing-here is not installed")
    assert check.advice == "pip install 'recmix[a]'"


def test_the_checks_of_a_gpu(capsys, monkeypatch):
    """With a GPU that is not real, and the CPU in its place."""
    import torch

    about = SimpleNamespace(name="Test GPU", total_memory=2**34, major=9, minor=0)
    trained = doctor._train("cpu")
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: 1)
        patch.setattr(torch.cuda, "get_device_properties", lambda index: about)
        patch.setattr(doctor, "_train", lambda device: trained)
        patch.setattr(doctor, "_compare", lambda model, x: "equal")
        checks = {check.name: check for check in doctor._gpu()}
    assert checks["device"].detail == "1: Test GPU, 16 GiB, 9.0"
    assert checks["training"].state == checks["refinement"].state == "ok"
    assert (checks["CUDA graphs"].state, checks["CUDA graphs"].detail[:5]) == ("note", "eager")
    assert doctor._compare(*trained[:2]) == "refined log p(x, z) equals that of the CPU up to 0 nats"


def test_triton_needs_a_compiler(monkeypatch):
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "3.4")
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    monkeypatch.delenv("CC", raising=False)
    assert doctor._triton().advice == "install gcc or clang"
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert doctor._triton().detail == "3.4, compiler cc"
