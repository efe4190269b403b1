import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.errors import ScenarioError
from pipesim.show.figures import pareto_front, plot_bubble, save_figure
from pipesim.show.figures.canvas import COLOURS, shade
from pipesim.show.figures.labels import place, spread
from pipesim.show.figures.pareto import Point, plot_points


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
