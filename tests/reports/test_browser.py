"""The report page in a real browser: it opens from a file, sorts, filters, draws and shows a run."""

import pytest
from cases.reports import add_run, fill, write

from recmix.reports.write_report import write_report

NASTY = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    store = folder / "store"
    rows = {("VAE", None), ("VAE+", None), ("SA", 1), ("SA", 8), ("RME", 2), ("RME", 5)}
    fill(store, sets=("mnist", "omniglot"), dims=(20, 50), splits=6, restarts=2, rows=rows)
    failed = add_run(store, "RME", 3, name="failed-run", status="running")
    write(failed / "failed.json", {"reason": NASTY})
    add_run(store, NASTY, 7, data="mnist", name=NASTY.replace("/", "|"))
    (store / "broken").mkdir()
    return write_report(store, out=folder / "report.html").as_uri()


@pytest.fixture
def page(browser, address):
    """The open page. The test fails on a warning in the console and on a request to a server."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    opened = context.new_page()
    messages, requests = [], []
    opened.on("console", lambda m: messages.append(m.text) if m.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: messages.append(str(error)))
    opened.on("request", lambda request: requests.append(request.url))
    opened.goto(address)
    opened.wait_for_selector("#run-table tbody tr")
    yield opened
    assert not messages
    assert requests == [address]
    assert "recmix report" in opened.title()  # no text from the store ran as a script
    context.close()


def column(page, selector):
    return page.eval_on_selector_all(selector, "cells => cells.map(cell => cell.innerText)")


def values(page, table, col, kind=":not(.paper)"):
    selector = f"#table-{table} tbody td[data-col='{col}']{kind}"
    cells = page.eval_on_selector_all(selector, "cells => cells.map(cell => cell.dataset.v ?? null)")
    return [None if cell is None else float(cell) for cell in cells]


def test_page_opens_without_errors(page):
    assert page.locator("h1").inner_text() == "store"
    assert page.locator("#table-likelihood tbody tr").count() == 8
    assert page.locator(".cards li").count() == 4
    assert page.locator("#messages").inner_text().count("broken: does not hold a run") == 1


def test_tables_sort_by_click_and_by_keyboard(page):
    head = page.locator("#table-likelihood thead th[data-col='0'][data-key='ours']")
    names = column(page, "#table-likelihood tbody th")
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    found = values(page, "likelihood", 0)
    known = [value for value in found if value is not None]
    assert known == sorted(known, reverse=True)
    assert found[len(known) :] == [None] * (len(found) - len(known))  # missing values come last
    head.locator("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert [v for v in values(page, "likelihood", 0) if v is not None] == sorted(known)
    assert page.locator("#table-likelihood [aria-sort='ascending']").count() == 1
    paper = page.locator("#table-likelihood thead th[data-col='0'][data-key='paper'] button")
    paper.press("Space")
    printed = [v for v in values(page, "likelihood", 0, ".paper") if v is not None]
    assert printed == sorted(printed, reverse=True)
    page.locator("#table-likelihood thead th.name button").click()
    assert column(page, "#table-likelihood tbody th") == names


def test_filters_choose_data_set_and_dimension(page):
    page.select_option("#filter-data", "omniglot")
    heads = page.locator("#table-likelihood thead th.group:visible")
    assert heads.all_inner_texts() == ["OMNIGLOT"]
    assert page.locator("#table-likelihood tbody tr").first.locator("td:visible").count() == 4
    assert heads.first.get_attribute("colspan") == "4"
    assert page.locator("#frontier-charts figure").count() == 2
    assert set(column(page, "#run-table tbody td:nth-child(3)")) <= {
        "OMNIGLOT, dim 20",
        "OMNIGLOT, dim 50",
    }
    page.select_option("#filter-dim", "50")
    assert page.locator("#table-likelihood tbody tr").first.locator("td:visible").count() == 2
    assert page.locator(".cards li:visible").count() == 1
    assert set(column(page, "#run-table tbody td:nth-child(3)")) == {"OMNIGLOT, dim 50"}
    assert page.locator("#filter-count").inner_text() == "1 of 4 columns"
    assert page.locator("#curve-column option").all_inner_texts() == ["OMNIGLOT, dim 50"]
    page.select_option("#filter-data", "")
    page.select_option("#filter-dim", "")
    assert page.locator("#frontier-charts figure").count() == 4


def test_details_show_spec_environment_and_log(page):
    page.fill("#run-search", "RME(5) omniglot")
    assert page.locator("#run-count").inner_text() == "1–24 of 24 runs"
    page.locator("#run-table tbody button").first.click()
    page.wait_for_selector("#details-body details")
    body = page.locator("#details-body")
    assert "RME(5) on OMNIGLOT, dim 20" in page.locator("#details-title").inner_text()
    assert '"torch": "2.13.0"' in body.locator("details", has_text="Environment").inner_text()
    body.locator("summary", has_text="Spec").click()
    assert '"method": "rme"' in body.inner_text()
    body.locator("summary", has_text="Log").click()
    assert '"event": "start"' in body.inner_text()
    assert body.locator("svg path.line").count() == 1
    page.keyboard.press("Escape")
    assert not page.locator("#details").is_visible()


def test_runs_are_searched_sorted_and_paged(page):
    assert page.locator("#run-table tbody tr").count() == 50
    page.click("#run-next")
    assert page.locator("#run-count").inner_text().startswith("51–100 of ")
    page.select_option("#run-status", "failed")
    assert page.locator("#run-table tbody tr").count() == 1
    page.locator("#run-table tbody button").click()
    page.wait_for_selector("#details-body details")
    assert "onerror" in page.locator("#details-body").inner_text()  # as text
    page.keyboard.press("Escape")
    page.select_option("#run-status", "")
    page.check("#run-selected")
    assert page.locator("#run-count").inner_text().endswith(f"of {6 * 6 * 4 + 1} runs")
    page.get_by_role("button", name="Validation").click()
    shown = [float(v.replace("−", "-")) for v in column(page, "#run-table tbody td:nth-child(7)")]
    assert shown == sorted(shown)


def test_curves_follow_pointer_and_arrow_keys(page):
    assert page.locator("#curve-chart path.line").count() == 6  # 2 SA, 2 RME, VAE+, unknown
    page.locator("#curve-chart svg").scroll_into_view_if_needed()
    page.locator("#curve-chart svg").hover(position={"x": 500, "y": 150})
    tip = page.locator("#curve-chart .tip")
    assert "epoch" in tip.inner_text()
    assert page.locator("#curve-chart path.hot").count() == 1
    page.locator("#curve-chart svg").focus()
    page.keyboard.press("ArrowRight")
    first = page.locator("#curve-point").inner_text()
    page.keyboard.press("ArrowDown")
    assert page.locator("#curve-point").inner_text() != first
    page.locator("#curve-legend button").first.click()
    assert page.locator("#curve-legend button").first.get_attribute("aria-pressed") == "false"
    assert page.locator("#curve-chart path.line").count() == 5
    page.select_option("#curve-stage", "0")
    assert page.locator("#curve-legend button").all_inner_texts() == ["VAE"]


def test_frontier_labels_do_not_overlap(page):
    for chart in page.locator("#frontier-charts svg").all():
        boxes = [text.bounding_box() for text in chart.locator("text.name").all()]
        assert len(boxes) >= 6
        for i, a in enumerate(boxes):
            for b in boxes[:i]:
                across = min(a["x"] + a["width"], b["x"] + b["width"]) - max(a["x"], b["x"])
                down = min(a["y"] + a["height"], b["y"] + b["height"]) - max(a["y"], b["y"])
                assert min(across, down) < 2.5  # the box of a text is taller than its letters


def test_theme_button_overrides_the_system(page):
    def ground():
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light = ground()
    page.emulate_media(color_scheme="dark")
    dark = ground()
    assert light != dark
    page.click("#theme")  # light, although the system is dark
    assert ground() == light
    page.click("#theme")
    page.emulate_media(color_scheme="light")
    assert ground() == dark
    page.emulate_media(media="print")
    assert ground() == "rgb(255, 255, 255)"


CONTRAST = """
() => {
  const parse = (text) => {
    const parts = text.match(/[\\d.]+/g).map(Number);
    return parts.length > 3 ? parts : [...parts, 1];
  };
  const over = (top, under) => top.slice(0, 3).map((c, i) => c * top[3] + under[i] * (1 - top[3]));
  const ground = (node) => {
    const layers = [];
    for (; node; node = node.parentElement) layers.push(parse(getComputedStyle(node).backgroundColor));
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
  };
  const light = (rgb) => {
    const linear = (c) => (c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4);
    const [r, g, b] = rgb.map((c) => linear(c / 255));
    return .2126 * r + .7152 * g + .0722 * b;
  };
  let worst = [99, ""];
  for (const node of document.querySelectorAll("main *")) {
    const text = [...node.childNodes].some((c) => c.nodeType === 3 && c.textContent.trim());
    const ignored = "svg, [hidden], .visually-hidden, noscript, .arrow";
    if (!text || node.closest(ignored) || !node.offsetParent) continue;
    const back = ground(node);
    const ink = over(parse(getComputedStyle(node).color), back);
    const [a, b] = [light(ink), light(back)];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < worst[0]) worst = [ratio, node.className + ": " + node.textContent.slice(0, 60)];
  }
  return worst;
}
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(page, scheme):
    page.emulate_media(color_scheme=scheme)
    ratio, where = page.evaluate(CONTRAST)
    assert ratio >= 4.5, where


def test_phone_has_no_horizontal_scroll(page):
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("#table-likelihood tbody th").first.is_visible()


def test_every_control_has_a_name(page):
    for control in page.locator("button:visible, select:visible, input:visible").all()[:60]:
        named = control.evaluate("c => c.labels?.length || c.innerText.trim() || c.ariaLabel")
        assert named, control.evaluate("c => c.outerHTML")
