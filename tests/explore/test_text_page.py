"""The explorer page for runs of texts, in a real browser."""

from itertools import product

import pytest
import torch
from cases.explore import app_of, save
from cases.page import opened, served

import recmix
from recmix.explore import drawing

WORDS = list(map(" ".join, product(("the", "a", "one"), ("cat", "dog", "cow"), ("sat", "ran"))))
WORDS += [f"{text} far" for text in WORDS]
PARTS = product((1, 2, 3), ("O", "N", "(=O)", "(Cl)"), (0, 1, 2))
MOLECULES = ["C" * before + part + "C" * after for before, part, after in PARTS]
TINY = {"latent": 2, "epochs": 1, "device": "cpu", "progress": False, "units": 8, "blocks": 1}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("texts")
    (root / "words.txt").write_text("\n".join(WORDS))
    (root / "molecules.smi").write_text("\n".join(MOLECULES))
    torch.manual_seed(0)
    words = recmix.data.load(root / "words.txt", length=7)
    smiles = recmix.data.load(root / "molecules.smi", length=12)
    how = {"network": "gru", "likelihood": "categorical", **TINY}
    recmix.fit("vae", words, out=root / "vae", **how)
    recmix.fit("me", words, out=root / "me", order=2, vae_epochs=1, **how)
    recmix.fit("vae", smiles, out=root / "smiles", **how)
    save(root / "digits", "vae", latent=2)
    return {name: root / name for name in ("vae", "me", "smiles", "digits")}


@pytest.fixture(scope="module")
def address(runs):
    with served(app_of(runs["vae"], runs["me"])) as address:
        yield address


def text_ready(page):
    """Wait until every run of texts shows its explanation of the text."""
    page.locator("#text-cards .gain").last.wait_for(state="attached")
    page.locator("#text-cards [aria-busy]").first.wait_for(state="detached")


@pytest.fixture
def page(browser, address):
    with opened(browser, address, ready=text_ready, allowed=("422",)) as page:
        yield page


def test_cards_show_reconstructions_components_bounds_and_neighbours(page):
    assert page.locator("#image").is_hidden()
    assert page.locator("#text").is_visible()
    assert page.input_value("#text-input") == page.locator("#test-texts button").first.inner_text()
    assert page.locator("#text-cards article").count() == 2
    mixture = page.locator("#text-cards article").nth(1)
    assert mixture.locator(".weight").count() == 2
    assert mixture.locator(".bounds dd").count() == 2
    assert "refined" in mixture.locator(".bounds").inner_text()
    assert "over vae" in mixture.locator(".bounds").inner_text()
    mixture.locator(".distance").first.wait_for()
    assert mixture.locator(".distance").count() >= 3
    assert page.locator("#text-samples li").count() == 16
    assert page.locator("#text-interpolations li").count() == 14


def test_text_is_written_and_its_problems_are_said(page):
    page.fill("#text-input", "the zebra sat")
    page.get_by_text("not in the vocabulary, read as unknown: zebra").wait_for()
    text_ready(page)
    page.fill("#text-input", "cat " * 7)
    page.get_by_text("longer than 6 tokens").wait_for()
    page.fill("#text-input", "<b>cat</b>")
    page.get_by_text("read as unknown: <b>cat</b>").wait_for()
    page.fill("#text-input", " ")
    page.get_by_text("Write a text, or choose a test text.").wait_for()
    page.locator("#test-texts button").nth(1).click()
    assert page.locator("#test-texts button").nth(1).get_attribute("aria-pressed") == "true"
    text_ready(page)
    assert page.inner_text("#text-problem") == ""


def test_refinement_steps_move_in_all_cards(page):
    page.locator("#text-run-0-step").fill("2")
    assert page.locator("#text-run-1-step").input_value() == "2"
    assert page.locator("#text-cards [data-now] th").all_inner_texts() == ["2", "2"]


def test_a_neighbour_becomes_the_text(page):
    button = (
        page.locator("#text-cards article").first.locator(".distance").last.locator("xpath=..//button")
    )
    chosen = button.inner_text()
    button.click()
    assert page.input_value("#text-input") == chosen
    text_ready(page)


def test_runs_are_switched_off_and_ends_are_swapped(page):
    page.locator("#switches button").first.click()
    assert page.locator("#text-cards article").first.is_hidden()
    before = [page.inner_text(f"#text-end-{end}") for end in "ab"]
    page.click("#text-swap")
    assert [page.inner_text(f"#text-end-{end}") for end in "ba"] == before


def test_page_fits_a_phone(browser, address):
    size = {"width": 390, "height": 800}
    with opened(browser, address, ready=text_ready, viewport=size, color_scheme="dark") as page:
        assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_molecules_are_drawn_as_images(browser, runs):
    pytest.importorskip("rdkit")
    how = {"ready": text_ready, "allowed": ("422",)}
    with served(app_of(runs["smiles"])) as address, opened(browser, address, **how) as page:
        picture = page.locator("#text-drawing img")
        picture.wait_for()
        assert picture.evaluate("image => image.complete && image.naturalWidth > 0")
        page.fill("#text-input", "CCO(")
        page.get_by_text("not a valid SMILES string of a molecule").wait_for()
        assert picture.is_hidden()


def test_without_rdkit_the_page_shows_the_text_and_a_hint(browser, runs, monkeypatch):
    monkeypatch.setattr(drawing.importlib.util, "find_spec", lambda name: None)
    drawing.can_draw.cache_clear()
    try:
        with (
            served(app_of(runs["smiles"])) as address,
            opened(browser, address, ready=text_ready) as page,
        ):
            assert "recmix[molecules]" in page.inner_text("#text-note")
            assert page.locator("img").count() == 0
    finally:
        drawing.can_draw.cache_clear()


def test_images_and_texts_are_shown_together(browser, runs):
    with (
        served(app_of(runs["digits"], runs["vae"])) as address,
        opened(browser, address, ready=text_ready) as page,
    ):
        assert page.locator("#image").is_visible()
        assert page.locator("#text").is_visible()
        assert page.locator("#cards article").count() == page.locator("#text-cards article").count() == 1


def test_sentences_and_molecules_are_written_in_one_box(browser, runs):
    pytest.importorskip("rdkit")
    how = {"ready": text_ready, "allowed": ("422",)}
    with (
        served(app_of(runs["vae"], runs["smiles"])) as address,
        opened(browser, address, **how) as page,
    ):
        assert page.inner_text("#text-label") == "Write a sentence, or a molecule as a SMILES string"
        assert page.inner_text("#text-note") == "Up to 6 words or 11 tokens, depending on the run."
        page.fill("#text-input", "CCO")
        picture = page.locator("#text-drawing img")  # drawn, although the first run is of sentences
        picture.wait_for()
        assert picture.evaluate("image => image.complete && image.naturalWidth > 0")
