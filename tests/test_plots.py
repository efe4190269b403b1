import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

import pipesim
from pipesim.cli.options import parse_window
from pipesim.errors import ScenarioError
from pipesim.evidence.published.tables import read_table_file
from pipesim.questions import bubble_curves, compare
from pipesim.show.figures import (
    pareto_front,
    plot_breakdown,
    plot_bubble,
    plot_gantt,
    plot_memory,
    plot_memory_parts,
    plot_pareto,
    save_figure,
    sweep_pictures,
)
from pipesim.show.figures.canvas import COLOURS, MISFIT_WORDS, form_of, letters_on, png, shade
from pipesim.show.figures.labels import place, spread
from pipesim.show.figures.pareto import Point, plot_points
from pipesim.show.figures.published_errors import plot_accuracy
from pipesim.show.figures.sweep_pictures import plot_sweep
from pipesim.show.held import held_at_most

ROOT = Path(__file__).parent.parent
TEACHING, GPT3 = ROOT / "scenarios" / "teaching.yaml", ROOT / "scenarios" / "gpt3-175b-a100.yaml"


def run_of(file, *overrides):
    return pipesim.Scenario.load(file, *overrides).predict()


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_pareto_front_keeps_what_nothing_beats():
    points = [Point(*p) for p in (("a", 1, 9), ("b", 2, 5), ("c", 2, 6), ("d", 3, 5), ("e", 4, 1))]
    assert [point.label for point in pareto_front(points)] == ["a", "b", "e"]


def test_later_chunks_are_lighter_and_one_chunk_keeps_its_colour():
    for colour in COLOURS.values():
        tones = [sum(shade(colour, chunk, 4)) for chunk in range(4)]
        assert tones == sorted(tones)
        assert len(set(tones)) == 4
        assert shade(colour, 0, 1) == pytest.approx(shade(colour, 0, 4))


def test_svg_is_the_same_every_time(tmp_path):
    curves = {"1f1b": [(4, 0.5), (8, 0.25)]}
    for name in ("a.svg", "b.svg"):
        save_figure(plot_bubble("title", curves), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_title_longer_than_the_picture_is_cut(tmp_path):
    figure = plot_bubble("x" * 3000, {"1f1b": [(4, 0.5)]})
    assert len(figure.axes[0].get_title("left")) < 200
    save_figure(figure, tmp_path / "a.png")


def test_a_picture_is_png_or_svg(tmp_path):
    with pytest.raises(ScenarioError, match=r"\.png or \.svg"):
        save_figure(plot_bubble("title", {"1f1b": [(4, 0.5)]}), tmp_path / "a.gif")
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.tuples(st.floats(-1, 11), st.floats(0.1, 1)), min_size=1, max_size=9))
def test_labels_of_a_column_keep_apart_in_order_and_inside(labels):
    wanted, heights = zip(*sorted(labels), strict=True)
    found = spread(wanted, heights, top=10)
    lower = [middle - height / 2 for middle, height in zip(found, heights, strict=True)]
    upper = [middle + height / 2 for middle, height in zip(found, heights, strict=True)]
    assert lower[0] >= -1e-9
    assert upper[-1] <= 10 + 1e-9
    assert all(low >= up - 1e-9 for up, low in zip(upper, lower[1:], strict=False))


def test_labels_move_only_where_they_touch_and_by_as_much():
    assert spread([1, 5, 5, 9], [1, 1, 1, 1], top=10) == [1, 4.5, 5.5, 9]
    assert spread([10, 10], [1, 1], top=10) == [8.5, 9.5]


def test_labels_of_points_cover_no_other():
    points = [(float(x), float(y)) for x in range(0, 60, 20) for y in range(0, 60, 20)]
    taken = [(x - 1, y - 1, 2.0, 2.0) for x, y in points]
    for point in points:
        place(point, (15, 6), taken, gap=2)
    for number, (left, bottom, width, height) in enumerate(taken):
        for other_left, other_bottom, other_width, other_height in taken[:number]:
            assert (
                left >= other_left + other_width
                or other_left >= left + width
                or bottom >= other_bottom + other_height
                or other_bottom >= bottom + height
            )


@pytest.mark.parametrize("ratios", [(0.5, 0.25), (0.0, 0.0)])
def test_thirty_curves_and_points_are_drawn_without_a_warning(ratios, tmp_path):
    curves = {f"s{n}": [(4, ratios[0]), (8, ratios[1] * (1 + n % 12))] for n in range(30)}
    save_figure(plot_bubble("title", curves, mark=8), tmp_path / "bubble.png")
    points = [Point(f"s{n}", 1.0 + n % 7 / 50, 3.0 + n % 5) for n in range(30)]
    save_figure(plot_points("title", points), tmp_path / "pareto.png")
    save_figure(plot_points("title", points[:1], limit=10), tmp_path / "one.svg")


def test_a_notebook_shows_a_returned_figure_without_pyplot():
    """IPython's own formatter, in a fresh interpreter that no other test has given a backend."""
    pytest.importorskip("IPython")
    code = (
        "import sys, pipesim\n"
        "from IPython.core.formatters import DisplayFormatter\n"
        "from pipesim.show.figures import plot_gantt\n"
        "run = pipesim.Scenario.load('scenarios/teaching.yaml').predict()\n"
        "shown, _ = DisplayFormatter().format(plot_gantt(run))\n"
        "print(shown['image/png'][:4], 'matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "b'\\x89PNG' False"


def test_every_picture_of_runs_is_a_figure_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = run_of(GPT3, "batch.global=16")
    for figure in (plot_gantt(run), plot_breakdown(run), plot_memory(run), plot_pareto([run])):
        assert isinstance(figure, Figure)
        assert png(figure).startswith(b"\x89PNG")
    assert list(tmp_path.iterdir()) == []


def test_a_figure_that_was_shown_is_saved_as_if_it_were_not():
    shown, fresh = (plot_gantt(run_of(TEACHING)) for _ in range(2))
    before = shown.dpi, shown.canvas
    shown._repr_png_()
    assert (shown.dpi, shown.canvas) == before
    assert png(shown) == png(fresh)


def test_a_formula_in_a_name_stays_text_while_ticks_are_numbers():
    name = r"$\\frac$ $x_1$"
    figure = plot_accuracy(name, {name: [(0.3, 0.4), (250.0, 200.0)]}, unit="s")
    figure.draw_without_rendering()
    ticks = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert {"0.5", "1", "10", "100"} <= set(ticks)
    assert not any("$" in tick for tick in ticks)
    assert (figure.axes[0].get_title("left"), legend(figure)) == (name, [name])
    plot_points(name, [Point(name, 1.0, 2.0)]).draw_without_rendering()


def test_no_two_of_thirty_sets_look_alike_without_their_colours():
    assert len({(form_of(n)["marker"], form_of(n)["fillstyle"]) for n in range(30)}) == 30


def test_memory_of_stated_times_is_a_message():
    with pytest.raises(ScenarioError, match="state no bytes of activations"):
        plot_memory(run_of(TEACHING))


def test_what_does_not_fit_is_hatched_and_said():
    """GPipe holds 64 microbatches where 1F1B holds 8, and needs 120 of 80 GB (the README's table)."""
    large, small = (run_of(GPT3, f"schedule={name}") for name in ("gpipe", "1f1b"))
    upper, lower = plot_gantt(large, small).axes
    assert upper.patch.get_hatch()
    assert not lower.patch.get_hatch()
    assert upper.get_title("left").endswith(MISFIT_WORDS)
    assert MISFIT_WORDS not in lower.get_title("left")
    for plot in (plot_breakdown, plot_memory):
        hatched = [
            [p.get_hatch() for p in plot(run).axes[0].patches if p.get_hatch()] for run in (large, small)
        ]
        assert hatched[0]
        assert not hatched[1]
    assert legend(plot_pareto([large, small])).count(MISFIT_WORDS) == 1


def test_stated_times_are_drawn_in_units_of_a_forward():
    halved = run_of(TEACHING, "costs.forward=0.5 s", "costs.backward=1 s")
    figure, same = plot_gantt(halved), plot_gantt(run_of(TEACHING))
    assert figure.axes[0].get_xlim() == same.axes[0].get_xlim() == (0, 33)
    assert figure.axes[0].get_xlabel() == "F, the forward of a rank (500 ms)"
    assert plot_gantt(run_of(GPT3, "batch.global=16")).axes[0].get_xlabel() == "seconds"
    listed = run_of(TEACHING, "costs.forward=[1 s, 2 s, 1 s, 1 s]")
    assert plot_breakdown(listed).axes[0].get_ylabel() == "of a step, in seconds"


def test_the_legend_names_light_shades_where_a_rank_has_chunks():
    assert any("chunk" in words for words in legend(plot_gantt(run_of(TEACHING, "schedule=zb-v"))))
    assert not any("chunk" in words for words in legend(plot_gantt(run_of(TEACHING))))


def test_memory_without_bytes_counts_equal_units():
    """In microbatches of p equal parts: 1F1B, ZB-H1 and ZB-V p, DualPipe p + 1, V-Half p/2 + 1, GPipe m."""
    names = ["1f1b", "zb-h1", "zb-v", "dualpipe", "v-half", "gpipe"]
    results = compare(pipesim.Scenario.load(TEACHING), schedules=names).results
    assert [held_at_most(result) for result in results] == [4, 4, 4, 5, 3, 8]


def test_a_sweep_draws_the_best_that_fits():
    """At 8 GPUs the faster row does not fit; at 16 none does."""
    rows = {
        "num_gpus": [8, 8, 16],
        "fits_memory": [True, False, False],
        "model_tflops_per_gpu": [100.0, 150.0, 120.0],
    }
    figure = plot_sweep(pd.DataFrame(rows), "weak-scaling", "title")
    line, crosses = figure.axes[0].lines
    assert line.get_ydata().tolist() == [100, 120]
    assert (list(crosses.get_xdata()), crosses.get_label()) == ([16], MISFIT_WORDS)


@pytest.mark.parametrize("column", ["num_gpus", "step_time_s", "inter_node_bytes_per_s"])
def test_the_table_of_a_sweep_has_nothing_below_zero_or_at_it(tmp_path, column):
    row = dict.fromkeys(sweep_pictures._NUMBERS, 1) | {"status": "ok", "inter_node_bytes_per_s": 5e10}
    path = tmp_path / "sweep.csv"
    pd.DataFrame([row | {"bubble_ratio": 0.0}]).to_csv(path, index=False)
    assert len(sweep_pictures.read_sweep(path)) == 1
    pd.DataFrame([row | {column: 0}]).to_csv(path, index=False)
    with pytest.raises(ScenarioError, match=f"{column}: found '0"):
        sweep_pictures.read_sweep(path)


def test_memory_of_ranks_is_drawn_without_a_limit():
    frame = pd.DataFrame([{"schedule": "1f1b", "peak_memory_bytes_by_rank": "1e9 2e9"}])
    assert plot_sweep(frame, "memory-stage", "title").axes[0].lines


@pytest.mark.parametrize("word", ["inf", "nan", "1.5", "0"])
def test_a_count_of_a_published_table_is_whole(tmp_path, word):
    path = tmp_path / "table.csv"
    path.write_text(f"PP\n{word}\n")
    with pytest.raises(ScenarioError, match="a whole number of at least 1"):
        read_table_file(path)[0].count("PP")


def test_a_window_shows_the_first_or_the_last_part_of_the_longest_step():
    run = run_of(TEACHING)  # 33 s
    assert run.gantt(window=(0.0, 0.2)).axes[0].get_xlim() == pytest.approx((0, 6.6))
    assert run.gantt(window=(0.9, 1.0)).axes[0].get_xlim() == pytest.approx((29.7, 33))
    few, all_of_it = (len(run.gantt(window=w).axes[0].texts) for w in ((0.9, 1.0), (0.0, 1.0)))
    assert (few, all_of_it) == (3, 64)  # backward 6 (until 30) and 7 on rank 0, 7 on rank 1 (until 31)


@pytest.mark.parametrize("words", ["middle", "last:", "first:0", "last:150%", "last:x"])
def test_another_window_is_refused(words):
    if words == "last:":
        assert parse_window(words) == parse_window("last") == (0.8, 1.0)
    else:
        with pytest.raises(ScenarioError, match="--window"):
            parse_window(words)


def test_closed_forms_stand_beside_what_was_simulated():
    """(p - 1) / (m + p - 1) for GPipe; ZB-H1 with F = I = W has a third of its idle time (2401.10241)."""
    scenario = pipesim.Scenario.load(TEACHING)
    curves = bubble_curves(scenario, schedules=["gpipe", "zb-h1", "v-half"], counts=[8, 16])
    assert curves.closed_form["gpipe"] == [(m, pytest.approx(3 / (m + 3))) for m in (8, 16)]
    assert curves.closed_form["zb-h1"] == [(m, pytest.approx(1 / (m + 1))) for m in (8, 16)]
    assert curves.simulated["gpipe"] == [(m, pytest.approx(3 / (m + 3))) for m in (8, 16)]
    assert "v-half v2" in curves.simulated.keys() - curves.closed_form.keys()
    assert legend(plot_bubble("title", curves.simulated, closed_forms=curves.closed_form))


def test_numbers_in_boxes_can_be_read():
    """4.5 to 1, what WCAG 2 asks of small text (success criterion 1.4.3)."""

    def luminance(colour):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
        return np.dot([0.2126, 0.7152, 0.0722], linear)

    for colour in COLOURS.values():
        for chunk in range(4):
            box = shade(colour, chunk, 4)
            low, high = sorted((luminance(box), luminance(letters_on(box))))
            assert (high + 0.05) / (low + 0.05) > 4.5


def test_points_of_a_bubble_curve_that_do_not_fit_are_crossed_out():
    """GPipe of 64 microbatches needs 120 of 80 GB (the README's table)."""
    curves = bubble_curves(pipesim.Scenario.load(GPT3), schedules=["gpipe", "1f1b"], counts=[8, 64])
    assert {name: [m for m, _ in points] for name, points in curves.too_large.items()} == {"gpipe": [64]}
    assert MISFIT_WORDS in legend(plot_bubble("title", curves.simulated, too_large=curves.too_large))


def test_the_limit_is_in_the_picture_where_memory_is_far_below_it():
    run = run_of(GPT3)  # 44.8 of 80 GB
    for figure in (plot_memory(run), plot_memory_parts(run)):
        assert figure.axes[0].get_ylim()[1] > run.costs.memory_limit_bytes / 1e9
