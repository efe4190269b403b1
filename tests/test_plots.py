import pytest

from pipesim.errors import ScenarioError
from pipesim.plots import pareto_front, plot_bubble
from pipesim.plots.canvas import COLOURS, shade


def test_pareto_front_keeps_what_nothing_beats():
    points = [("a", 1.0, 9.0), ("b", 2.0, 5.0), ("c", 2.0, 6.0), ("d", 3.0, 5.0), ("e", 4.0, 1.0)]
    assert [name for name, _, _ in pareto_front(points)] == ["a", "b", "e"]


def test_later_chunks_are_lighter_and_one_chunk_keeps_its_colour():
    for colour in COLOURS.values():
        tones = [sum(shade(colour, chunk, 4)) for chunk in range(4)]
        assert tones == sorted(tones)
        assert len(set(tones)) == 4
        assert shade(colour, 0, 1) == pytest.approx(shade(colour, 0, 4))


def test_svg_is_the_same_every_time(tmp_path):
    curves = {"1f1b": [(4, 0.5), (8, 0.25)]}
    for name in ("a.svg", "b.svg"):
        plot_bubble("title", curves, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_picture_is_png_or_svg(tmp_path):
    with pytest.raises(ScenarioError, match=r"\.png or \.svg"):
        plot_bubble("title", {"1f1b": [(4, 0.5)]}, tmp_path / "a.gif")
    assert list(tmp_path.iterdir()) == []
