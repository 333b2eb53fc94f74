"""The explorer page in a real browser, with small untrained models."""

import io

import numpy as np
import pytest
import torch
from cases.explore import app_of, ask, save
from cases.page import opened, ready, served
from PIL import Image
from torch import nn

import recmix
from recmix.commands.explore import load_models
from recmix.data import ArrayExamples
from recmix.explore.app import make_app
from recmix.explore.catalogue import Catalogue
from recmix.inference import Inference
from recmix.model.likelihoods import Gaussian
from recmix.pages import SHARED, shared_text

PIXELS = "canvas => [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data]"
VAE, RME = (f"#cards article:nth-child({place})" for place in (1, 2))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    return save(folder / "vae", "vae", latent=2), save(folder / "rme", latent=5, order=3)


@pytest.fixture(scope="module")
def address(runs):
    with served(app_of(*runs)) as address:
        yield address


@pytest.fixture
def page(browser, address):
    with opened(browser, address) as page:
        yield page


def pixels(page, selector):
    return page.locator(selector).first.evaluate(PIXELS)


def changed(page, selector, before):
    """Wait until this canvas shows other pixels, and return them."""
    for _ in range(300):
        now = pixels(page, selector)
        if now != before:
            return now
        page.wait_for_timeout(30)
    raise AssertionError(f"{selector} does not change")


def texts(page, selector):
    return page.locator(selector).all_inner_texts()


def run_box(page, name):
    return page.locator("#cards article").filter(has=page.get_by_role("heading", name=name, exact=True))


def test_shared_files_are_served(runs):
    app = app_of(*runs)
    for name, kind in zip(SHARED, ("text/css", "text/javascript"), strict=True):
        answer = ask(app, "GET", f"/{name}")
        assert answer.text == shared_text(name)
        assert answer.headers["content-type"] == f"{kind}; charset=utf-8"


def test_cards_show_posteriors_and_bounds(page):
    assert page.title() == "digits: recmix explorer"
    assert "choose another test image first" in page.locator("#intro").inner_text()
    assert texts(page, "#cards h3") == ["vae", "rme"]
    rme = run_box(page, "rme")
    shares = [float(text.removesuffix(" %").removeprefix("< ")) for text in texts(page, f"{RME} .share")]
    assert len(shares) == 3
    assert sum(shares) == pytest.approx(100, abs=0.3)
    assert rme.locator(".plane g.component").count() == 3
    assert "widest direction" in rme.locator(".plane .axis").first.text_content()
    vae = run_box(page, "vae")
    assert [axis.text_content() for axis in vae.locator(".plane .axis").all()] == ["z1", "z2"]
    assert vae.locator(".plane .true").count() == 3
    assert "not finite" not in page.locator("#cards").inner_text()
    assert "over vae" in rme.locator(".bounds").inner_text()
    assert page.locator("#thumbs [role=option]").count() == 24
    announced = page.locator("#announcement").text_content()  # for screen readers
    assert announced.startswith("vae: ELBO ")
    assert "; rme: ELBO " in announced


def test_numbers_are_those_of_the_server(page, address):
    image = page.request.get(f"{address}/runs/rme/images?count=1").json()["images"][0]
    found = page.request.post(
        f"{address}/explain", data={"image": image, "run": "rme", "grid": 40}
    ).json()
    bounds = run_box(page, "rme").locator(".bounds dd").all_inner_texts()
    for text, key in zip(bounds, ("elbo", "iwae"), strict=False):
        assert float(text.split("\n")[0].replace("−", "-")) == pytest.approx(
            found["bounds"][key], abs=0.051
        )
    shown = np.array(pixels(page, f"{RME} .pictures figure:nth-child(2) canvas")).reshape(8, 8, 4)
    expected = np.clip(np.array(found["reconstruction"][0]) * 255, 0, 255)
    assert np.abs(shown[..., 0] - expected).max() <= 0.51


def test_drawing_changes_the_components(page):
    page.get_by_role("tab", name="Draw").click()
    before = pixels(page, f"{RME} .components canvas")
    numbers = texts(page, f"{RME} .bounds dd")
    box = page.locator("#pad").bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(box["x"] + 100, box["y"] + 150, steps=8)
    page.mouse.up()
    changed(page, f"{RME} .components canvas", before)
    assert page.locator("#current-name").inner_text() == "your drawing"
    page.wait_for_timeout(300)
    ready(page)
    assert texts(page, f"{RME} .bounds dd") != numbers
    drawn = np.array(pixels(page, "#current")).reshape(8, 8, 4)[..., 0]
    assert drawn.max() > 200
    assert drawn[:, 7].max() == 0
    before = pixels(page, "#current")
    page.get_by_role("button", name="Clear").click()
    assert max(changed(page, "#current", before)[::4]) == 0


def test_sliders_decode_points(page):
    before = pixels(page, f"{RME} .decoder canvas")
    page.get_by_role("slider", name="second widest direction").fill("2.5")
    after = changed(page, f"{RME} .decoder canvas", before)
    card = run_box(page, "rme")
    card.get_by_label("single dimension").select_option("z4")
    card.get_by_label("offset").fill("2")
    changed(page, f"{RME} .decoder canvas", after)
    card.get_by_role("button", name="Reset to the mean").click()
    for _ in range(100):
        if pixels(page, f"{RME} .decoder canvas") == before:
            break
        page.wait_for_timeout(30)
    assert pixels(page, f"{RME} .decoder canvas") == before
    plane = run_box(page, "vae").locator(".plane")  # a click on the plot chooses a point too
    z1 = run_box(page, "vae").get_by_role("slider", name="z1")
    place = z1.input_value()
    plane.click(position={"x": 200, "y": 60})
    assert z1.input_value() != place


def test_refinement_slider_moves_all_runs(page):
    before = pixels(page, f"{VAE} .refinement canvas")
    run_box(page, "rme").get_by_label("Gauss-Newton steps").fill("4")
    assert pixels(page, f"{VAE} .refinement canvas") != before
    assert page.locator(".steps [data-now] th").all_inner_texts() == ["4", "4"]
    column = texts(page, f"{VAE} .steps tbody td:nth-child(2)")
    joints = [float(text.replace("−", "-")) for text in column]
    assert joints == sorted(joints)


def test_switches_show_and_hide_runs(page):
    switch = page.locator("#switches").get_by_role("button", name="vae")
    switch.click()
    assert not run_box(page, "vae").is_visible()
    assert run_box(page, "rme").is_visible()
    assert "over vae" not in page.locator(f"{RME} .bounds").inner_text()
    page.locator("#switches").get_by_role("button", name="rme").click()
    assert page.locator("#none-on").is_visible()
    page.locator("#thumbs [role=option]").nth(5).click()
    switch.click()
    ready(page)
    assert pixels(page, f"{VAE} .pictures canvas") == pixels(page, "#current")


def png(size, mode="RGB", colour="white"):
    file = io.BytesIO()
    Image.new(mode, size, colour).save(file, "PNG")
    return file.getvalue()


def test_files_are_uploaded_and_errors_shown(page, tmp_path):
    page.get_by_role("tab", name="Upload").click()

    def upload(name, content):
        (tmp_path / name).write_bytes(content)
        page.locator("#file").set_input_files(tmp_path / name)

    before = pixels(page, f"{RME} .components canvas")
    upload("white.png", png((300, 200)))
    page.get_by_text("white.png").wait_for()
    assert set(pixels(page, "#current")) == {255}
    changed(page, f"{RME} .components canvas", before)
    page.get_by_role("button", name="Invert").click()
    assert set(pixels(page, "#current")[::4]) == {0}
    for name, content, message in [
        ("text.png", b"no picture at all", "is not an image that this browser can read"),
        ("large.png", b"\x89PNG" + bytes(26 * 2**20), "at most 25 MiB"),
        ("wide.png", png((11000, 6000), "1", 1), "at most 60 million"),
    ]:
        upload(name, content)
        page.locator("#upload-problem", has_text=message).wait_for()
    assert page.locator("#current-name").inner_text() == "white.png, inverted"
    ready(page)


def test_new_samples_and_interpolation(page):
    page.locator("#samples .picture.shown").last.wait_for()
    before = pixels(page, "#samples canvas")
    page.get_by_role("button", name="New samples").click()
    changed(page, "#samples canvas", before)
    page.locator("#interpolations .frames .picture.shown").last.wait_for()
    middle = pixels(page, "#interpolations .large")
    page.get_by_role("slider", name="Position").fill("8")
    end = changed(page, "#interpolations .large", middle)
    assert "100 %" in page.locator("#position-text").inner_text()
    page.locator("#thumbs [role=option]").nth(7).click()
    page.get_by_role("button", name="Use current image as B").click()
    changed(page, "#interpolations .large", end)
    assert pixels(page, "#end-b") == pixels(page, "#current")
    ready(page)


def test_page_works_with_the_keyboard(page):
    page.locator("#tab-test").focus()
    page.keyboard.press("Tab")
    focused = "document.activeElement.getAttribute('aria-label') ?? document.activeElement.id"
    assert page.evaluate(focused) == "Test image 1"
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert page.locator("#current-name").inner_text() == "test image 14"
    page.keyboard.press("PageDown")
    page.locator("#current-name", has_text="test image 38").wait_for()
    assert page.locator("#pages").inner_text() == "25 to 48 of 297"
    for _ in range(30):  # faster than pages load
        page.keyboard.press("ArrowRight")
    page.locator("#current-name", has_text="test image 68").wait_for()
    assert page.evaluate(focused) == "Test image 68"
    ready(page)
    reached = set()
    for _ in range(80):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    wanted = {"invert", "goto", "run-0-step", "run-0-axis-0", "run-1-axis-1", "run-1-dimension"}
    wanted |= {"run-1-offset", "Reset to the mean", "resample", "take-a", "take-b", "swap", "position"}
    assert wanted <= reached
    page.locator("#run-0-step").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".steps [data-now] th").first.inner_text() == "1"
    page.locator("#tab-test").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#panel-draw").is_visible()


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (390, "light")])
def test_phone_has_no_horizontal_scroll(browser, address, width, scheme):
    options = {"viewport": {"width": width, "height": 780}, "color_scheme": scheme, "has_touch": True}
    with opened(browser, address, reduced_motion="reduce", **options) as page:
        for tab in ("Draw", "Upload", "Test images"):
            page.get_by_role("tab", name=tab).click()
            assert page.evaluate("document.documentElement.scrollWidth") == width
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.locator("#theme").click()
        page.locator("#theme").click()
        assert page.locator("#theme").inner_text() == "Theme: dark"
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == dark) == (scheme == "dark")


def test_prior_sample_is_shown_without_test_images(browser, tmp_path):
    data = {"name": "cats", "kind": "files", "path": str(tmp_path / "cats"), "seed": 0}
    lonely = save(tmp_path / "lonely", "vae", latent=1, data=data)
    app = app_of(lonely)
    with served(app) as address, opened(browser, address, allowed=("404",)) as page:
        assert page.locator("#current-name").inner_text() == "a prior sample of lonely"
        assert "not on this machine" in page.locator("#source-problem").inner_text()
        assert page.locator(".plane .approximate").count() == 1  # one dimension: curves


def test_card_names_the_inference_of_the_run(browser, tmp_path):
    refined = save(tmp_path / "refined", "vae", inference=Inference(refine=2, scale=1.5))
    with served(app_of(refined)) as address, opened(browser, address) as page:
        assert "refined by 2 Gauss-Newton steps · calibrated" in page.locator(".facts").inner_text()


def test_errors_of_the_server_are_shown(browser, runs):
    with served(app_of(*runs)) as address, opened(browser, address, allowed=("413", "Failed")) as page:
        answer = {"status": 413, "body": '{"error": "that is <b>too</b> much"}'}
        page.route("**/explain", lambda route: route.fulfill(**answer))
        page.locator("#thumbs [role=option]").nth(3).click()
        page.get_by_text("that is <b>too</b> much").first.wait_for()
        page.unroute("**/explain")
        page.route("**/*", lambda route: route.abort())
        page.locator("#thumbs [role=option]").nth(4).click()
        page.get_by_text("The server does not answer").first.wait_for()
        page.unroute("**/*")
        page.locator("#thumbs [role=option]").nth(5).click()
        page.get_by_text("The server does not answer").first.wait_for(state="detached")
        ready(page)


def test_late_answers_are_ignored(page):
    held = []

    def hold(route):
        if not held:
            held.append(route)
        else:
            route.continue_()

    page.route("**/explain", hold)
    page.locator("#thumbs [role=option]").nth(3).click()
    for _ in range(200):
        if held:
            break
        page.wait_for_timeout(20)
    page.locator("#thumbs [role=option]").nth(9).click()
    page.wait_for_timeout(400)
    ready(page)
    numbers = texts(page, ".bounds dd")
    held[0].fulfill(json={"error": "late"}, status=500)
    page.wait_for_timeout(100)
    assert texts(page, ".bounds dd") == numbers
    assert texts(page, "#cards .problem") == ["", ""]


def test_runs_that_are_not_images_are_left_out_with_a_message(browser, runs):
    vector = recmix.wrap(
        nn.Linear(6, 4), nn.Linear(2, 6), likelihood="bernoulli", example=torch.zeros(1, 6)
    )
    with (
        served(make_app(Catalogue({"table": vector, **load_models(runs[:1], device="cpu")}))) as address,
        opened(browser, address) as page,
    ):
        assert page.locator("#cards article").count() == 1
        assert "table has examples of shape (6,)" in page.inner_text("#problem")
    with served(make_app(Catalogue({"table": vector}))) as address:
        context = browser.new_context()
        page = context.new_page()
        page.goto(address)
        page.locator("#problem", has_text="table").wait_for()
        assert "table has examples of shape (6,)" in page.inner_text("#problem")
        assert page.locator("#cards article").count() == 0
        context.close()


def same_model(shape, x):
    """A wrapped model with the same weights for every shape of its examples, and its test examples."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(30, 4))
    decoder = nn.Sequential(nn.Linear(2, 30), nn.Unflatten(1, shape))
    x = x.reshape(-1, *shape)
    return recmix.wrap(encoder, decoder, likelihood=Gaussian(0.5), example=x[:2]), ArrayExamples(x)


@pytest.mark.filterwarnings("ignore:the bound .ELBO. on")  # the networks are not trained
def test_matrices_and_flat_vectors_are_shown_like_images(browser):
    x = np.random.default_rng(0).random((40, 30), np.float32)
    shapes = {"image": (1, 5, 6), "matrix": (5, 6), "flat": (30,)}
    made = {name: same_model(shape, x) for name, shape in shapes.items()}
    models, examples = ({name: both[i] for name, both in made.items()} for i in (0, 1))
    shown = []
    for name in made:
        mine = {name: models[name]}
        app = make_app(Catalogue(mine, examples=examples, shape=None if name != "flat" else (5, 6)))
        with served(app) as address, opened(browser, address) as page:
            assert page.locator("#problem").inner_text() == ""
            page.get_by_role("button", name="Reset to the mean").click()
            drawn = [f"{VAE} .pictures figure:nth-child({i}) canvas" for i in (1, 2)]
            drawn += ["#thumbs canvas", f"{VAE} .components canvas", f"{VAE} .refinement canvas"]
            drawn += [f"{VAE} .decoder canvas", "#interpolations .large"]
            found = [pixels(page, place) for place in drawn]
            shown.append([*found, texts(page, f"{VAE} .bounds dd")])
            before = pixels(page, "#pad")
            page.get_by_role("tab", name="Draw").click()
            page.get_by_role("button", name="Draw on the image").click()
            changed(page, "#pad", before)
            ready(page)
            assert page.locator("#samples .problem").inner_text() == ""
    original = np.array(shown[0][0]).reshape(5, 6, 4)[..., 0]
    np.testing.assert_allclose(original, 255 * x[0].reshape(5, 6), atol=0.51)
    assert shown[0] == shown[1] == shown[2]
