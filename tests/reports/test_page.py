from __future__ import annotations

import html.parser
import math
import subprocess
import sys

import numpy as np
import pytest
from chromium import NAMES, Chromium, find_chromium
from folders import HOST, candidate

from tlp.errors import WorkDirError
from tlp.records.status import Status
from tlp.reports.history import History, RoundTime, TaskHistory, read_history
from tlp.reports.page import render_page, write_page

EVIL = """</script><script>window.hacked = 1</script><b onmouseover='x'>"&{{ 7 * 7 }}"""


class Page(html.parser.HTMLParser):
    """Elements, attributes and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.texts, self.inside = [], [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.inside = tag

    def handle_data(self, data):
        if self.inside not in ("script", "style"):
            self.texts.append(data)

    def count(self, tag, **attributes):
        return sum(
            found == tag and all(has.get(key) == value for key, value in attributes.items())
            for found, has in self.elements
        )

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def simulated(trials, tasks, name="fused_conv2d{}_add_clip", error="LLVM said no\n" * 3):
    """A run of the given size with real kinds of outcomes, seeded."""
    rng = np.random.default_rng(0)
    found, number = [], 0
    for index in range(tasks):
        rows = []
        for trial in range(trials // tasks):
            number += 1
            round_ = trial // 10 + 1
            latency = float(0.2 + rng.gamma(2.0, 2.0 / round_))
            score = None if round_ == 1 else float(-math.log2(latency) + rng.normal(0, 0.5))
            status = [Status.OK, Status.SLOW, Status.BUILD_ERROR][
                rng.choice(3, p=[0.8, 0.15, 0.05])
            ]
            rows.append(
                candidate(
                    str(index),
                    round_,
                    latency,
                    status,
                    id=number,
                    predicted=score,
                    picked_by="random" if trial % 10 == 9 else "trees",
                    error="" if status.timed else error,
                    cause="" if status.timed else "RuntimeError",
                    elapsed_s=0.5 * number,
                )
            )
        found.append(
            TaskHistory(
                str(index), name.format(index), 1 + index % 3, 2e7, 3, 0.02,
                "conv2d_nchw 1x64x56x56", 10**6, candidates=tuple(rows),
            )
        )  # fmt: skip
    rounds = [
        RoundTime(t.key, r, {"search": 0.1, "replay": 0.2, "build": 3.0, "run": 1.5, "learn": 0.05})
        for t in found
        for r in sorted({c.round for c in t.candidates})
    ]
    return tuple(found), tuple(rounds)


def history_of(folder, trials=120, tasks=4, **more):
    found, rounds = simulated(trials, tasks, **more)
    summary = {
        "network": {"source": "mobilenet_v2", "batch": 1},
        "trials": sum(len(task.trials) for task in found),
        "latency_ms": {"tuned": 5.0, "pytorch": 9.0, "untuned": 60.0},
        "framework": "pytorch",
        "output_error": 2e-5,
        "output_tolerance": 1e-3,
    }
    return History(folder, found, rounds, 0.5 * trials, HOST, {"seed": 0}, summary)


# --- the text of the page -----------------------------------------------------------------------


def test_the_page_of_a_complete_run(two_tasks):
    two_tasks.summary(trials=7)
    page = Page(render_page(read_history(two_tasks.root)))
    for text in (
        *("mobilenet_v2", "complete", "llvm", "A CPU, 2 cores"),
        *("8.00 ms", "16.0 ms", "2.00× tuned", "2.0e-05", "0:08", "3 rounds"),
        *("conv_a", "conv2d 1x2x3", "signal 11", "VerifyGPUCode", "build 56.2%"),
    ):
        assert text in page.text, text
    assert page.count("figure", **{"class": "card", "data-task": "a"}) == 2
    assert page.count("figure", **{"class": "card", "data-task": "b"}) == 1


def test_every_plot_has_a_name_and_a_table(two_tasks):
    page = Page(render_page(read_history(two_tasks.root)))
    plots = [has for tag, has in page.elements if tag == "svg" and "plot" in has.get("class", "")]
    assert len(plots) == 2 * 4 + 3
    assert all(has["role"] == "img" and has["aria-label"] for has in plots)
    assert page.text.count("As a table") == 4
    assert page.text.count("Improvements") == 2


def test_nothing_comes_from_elsewhere(tmp_path):
    text = render_page(history_of(tmp_path))
    for _, has in Page(text).elements:
        for name in ("src", "href", "action", "data", "srcset"):
            assert has.get(name, "data:").startswith("data:")
    assert "@import" not in text
    assert "url(" not in text
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        (lambda folder: folder, "The folder names no task yet"),
        (lambda folder: folder.config().task("a"), "No task has a latency yet"),
        (lambda folder: folder.task("a", start=3.0), "No trial has a latency yet"),
        (
            lambda folder: folder.task("a").add(
                candidate("a", 1, status=Status.REFUSED, cause="RewriteReduction"),
                candidate("a", 1, status=Status.BUILD_ERROR, error="no such intrinsic"),
            ),
            "no such intrinsic",
        ),
        (
            lambda folder: folder.task("a").add(candidate("a", 1, 2.0, verified=False)),
            "none verified",
        ),
        (lambda folder: folder.task("a").add(candidate("a", 1, 2.0, predicted=0.0)), "ρ – within"),
        (
            lambda folder: folder.task("a").add(
                candidate("a", 1, 2.0), candidate("a", 1, 9.0, host="there")
            ),
            "1 candidates were measured on another machine",
        ),
    ],
    ids=["nothing", "no trial", "reference", "failures", "unverified", "one pair", "two machines"],
)
def test_pages_of_runs_that_did_not_get_far(folder, prepare, says):
    prepare(folder)
    page = Page(render_page(read_history(folder.root)))
    assert says in page.text
    assert "not complete" in page.text
    assert "nan" not in page.text
    assert " inf" not in page.text


def test_hostile_texts_stay_texts(folder):
    folder.config(source=EVIL).task("a", name=EVIL, start=3.0)
    folder.add(
        candidate("a", 1, 2.0, predicted=0.5, picked_by=EVIL),
        candidate("a", 1, 1.0, predicted=0.6, picked_by=EVIL),
        candidate("a", 1, status=Status.RUN_ERROR, error=EVIL, cause=EVIL),
    )
    folder.store.add_phase("a", 1, EVIL, 2.0)
    folder.store.set_meta("tasks", {"a": {"anchor": EVIL, "rows": 3}})
    page = Page(render_page(read_history(folder.root)))
    assert page.count("script") == 1
    assert page.count("b") == 0
    assert not any(name.startswith("on") for _, has in page.elements for name in has)
    assert page.text.count(EVIL) >= 10


def test_a_long_run_stays_a_small_file(tmp_path):
    text = render_page(history_of(tmp_path, trials=5000, tasks=34))
    assert len(text.encode()) < 1_500_000
    assert Page(text).count("figure", **{"class": "card"}) == 68


def test_long_error_texts_are_cut(folder):
    folder.task("a").add(candidate("a", 1, status=Status.BUILD_ERROR, error="x" * 10_000))
    text = render_page(read_history(folder.root))
    assert "x" * 2000 in text
    assert "x" * 2001 not in text
    assert "8,000 more characters" in text


def test_the_page_is_written_whole_or_not_at_all(two_tasks, tmp_path):
    history = read_history(two_tasks.root)
    path = tmp_path / "page.html"
    path.write_text("old")
    write_page(history, path)
    assert path.read_text().startswith("<!doctype html>")
    assert [p.name for p in tmp_path.glob("*page.html*")] == ["page.html"]
    (tmp_path / "file").write_text("")
    for wrong in (tmp_path, tmp_path / "file" / "page.html", tmp_path / "no" / "page.html"):
        with pytest.raises(WorkDirError, match="--html"):
            write_page(history, wrong)


def test_reading_and_rendering_load_neither_torch_nor_tvm(two_tasks, tmp_path):
    code = (
        "import sys\nfrom tlp.cli.main import app\n"
        "app(['report', *sys.argv[1:]], standalone_mode=False)\n"
        "print(sorted({'torch', 'tvm', 'lightgbm', 'scipy', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(two_tasks.root), "--html", str(tmp_path / "p.html")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]"
    assert "conv_a" in done.stdout
    assert (tmp_path / "p.html").exists()


# --- the page in a browser ----------------------------------------------------------------------

# Kinds of marks that a plot draws; each must be there with an extent, inside its plot.
MARKS = """
[...document.querySelectorAll("svg.plot")].filter(plot => plot.checkVisibility()).map(plot => {
  const room = plot.getBoundingClientRect();
  const marks = [...plot.querySelectorAll(".dots, .line, .box, .median")];
  const inside = mark => {
    const box = mark.getBoundingClientRect();
    return box.width + box.height > 0 && box.left > room.left - 4 && box.right < room.right + 4
      && box.top > room.top - 4 && box.bottom < room.bottom + 4;
  };
  const ink = mark => {
    const style = getComputedStyle(mark);
    return style.stroke !== "none" || style.fill !== "none";
  };
  return {name: plot.getAttribute("aria-label"), kind: plot.getAttribute("class"),
          width: room.width, height: room.height, marks: marks.length,
          good: marks.every(mark => inside(mark) && ink(mark)),
          texts: plot.querySelectorAll("text").length};
})
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = find_chromium()
    if program is None:
        pytest.skip(f"none of {', '.join(NAMES)} is installed; on Debian: apt install chromium")
    with Chromium(program, tmp_path_factory.mktemp("profile")) as started:
        yield started


def complaints(browser):
    entries = [event["entry"] for event in browser.happened("Log.entryAdded")]
    called = browser.happened("Runtime.consoleAPICalled")
    return entries + called + browser.happened("Runtime.exceptionThrown")


def requests(browser):
    return [event["request"]["url"] for event in browser.happened("Network.requestWillBeSent")]


def test_the_plots_are_drawn_and_the_console_is_clean(browser, tmp_path):
    path = tmp_path / "page.html"
    write_page(history_of(tmp_path, name="conv {} " + EVIL, error=EVIL), path)
    for width, dark in ((1000, False), (1000, True), (360, False)):
        browser.window(width, 800, dark)
        browser.open(path.as_uri())
        plots = browser.evaluate(MARKS)
        # The network, the places, the phases' shares and rounds; two for each of four tasks.
        assert len(plots) == 4 + 2 * 4
        for plot in plots:
            assert plot["width"] > 250 or width == 360
            assert plot["height"] > 20
            assert plot["marks"] > 0
            assert plot["good"], plot
            assert plot["texts"] >= 5 or "bar" in plot["kind"]
        wide = [("wide" in plot["kind"]) for plot in plots if "small" not in plot["kind"]]
        assert wide == 4 * [width == 1000]
        assert browser.evaluate("document.documentElement.scrollWidth") == width
        paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") is not dark
        assert complaints(browser) == []
        assert requests(browser) == [path.as_uri()]
    assert browser.evaluate("window.hacked === undefined && !document.querySelector('b')")

    browser.window(1000, 800)
    browser.open(path.as_uri())
    # The fastest trial of the first card: the tip says what the table says.
    at = browser.evaluate(
        """(() => {
          const plot = document.querySelector(".cards svg.plot");
          plot.scrollIntoView({block: "center"});
          const part = plot.querySelector(".dots.trial").getAttribute("d").split("M")[1];
          const [x, y] = part.split(/[ h]/).map(Number);
          const at = new DOMPoint(x, y).matrixTransform(plot.getScreenCTM());
          return [at.x, at.y, plot.querySelector(".dots.trial").dataset.labels.split("\\n\\n")[0]];
        })()"""
    )
    assert browser.evaluate("document.getElementById('tip').hidden")
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=at[0], y=at[1])
    assert not browser.evaluate("document.getElementById('tip').hidden")
    assert browser.evaluate("document.getElementById('tip').textContent") == at[2]
    assert at[2].startswith("trial 1, round 1: ")

    chosen = browser.evaluate(
        """(() => {
          const choice = document.querySelector("#picker select");
          choice.value = "2";
          choice.dispatchEvent(new Event("change"));
          return [...document.querySelectorAll(".card")]
            .filter(card => card.getClientRects().length).map(card => card.dataset.task);
        })()"""
    )
    assert chosen == ["2", "2"]

    weights = browser.evaluate(
        """(() => {
          document.querySelectorAll("table.sortable th button")[1].click();
          const rows = [...document.querySelector("table.sortable").tBodies[0].rows];
          return rows.map(row => Number(row.cells[1].textContent));
        })()"""
    )
    assert weights == [3, 2, 1, 1]
    assert complaints(browser) == []

    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(path.as_uri())
        plots = browser.evaluate(MARKS)
        assert len(plots) == 12
        assert all(plot["good"] for plot in plots)
        assert browser.evaluate("document.getElementById('picker').hidden")
        assert complaints(browser) == []
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


def test_the_browser_reports_what_a_bad_page_does(browser, tmp_path):
    path = tmp_path / "bad.html"
    path.write_text(
        "<svg class='plot' width='300' height='200'><path class='line' d='M900 0H990'/>"
        "</svg><img src='missing.png'><script>console.error('no'); nothing.there</script>"
    )
    browser.window(1000, 800)
    browser.open(path.as_uri())
    assert [plot["good"] for plot in browser.evaluate(MARKS)] == [False]
    assert len(requests(browser)) == 2
    assert len(browser.happened("Runtime.exceptionThrown")) == 1
    assert len(browser.happened("Runtime.consoleAPICalled")) == 1
