"""Shell scripts are followed, never run; layout strings; OmegaConf references."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from helpers import examples
from hypothesis import given
from hypothesis import strategies as st

from pipesim.errors import ScenarioError
from pipesim.importers.gpus_in_comments import gpus_in_comments
from pipesim.importers.interpolation import resolved
from pipesim.importers.megatron_arguments import flags_of
from pipesim.importers.megatron_layout import parse_layout
from pipesim.importers.readers import import_files
from pipesim.importers.shell import Script, new_script, read_script
from pipesim.scenario.settings import Unknown


def follow(text: str, **define: str) -> Script:
    script = new_script("run.sh", define)
    read_script(text, script)
    return script


def last_command(text: str, **define: str) -> list[str]:
    return follow(text, **define).commands[-1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A=8\nrun $A ${A} \"$A\" '$A'", ["run", "8", "8", "8", "$A"]),
        ('A="x y"\nrun $A "$A"', ["run", "x", "y", "x y"]),
        ("A=1 B=2\nrun $A$B", ["run", "12"]),
        ("export A=3\nrun a${A}b", ["run", "a3b"]),
        ("A=2\nrun $((A*3+1)) $(( $A - 5 ))", ["run", "7", "-3"]),
        ("run $((7/2)) $((-7/2)) $((-7%3))", ["run", "3", "-3", "-1"]),
        ("A=(--x 1\n --y 2 # note\n)\nrun ${A[@]}", ["run", "--x", "1", "--y", "2"]),
        ('A=("p q" r)\nrun "${A[@]}" ${A[0]} ${#A[@]}', ["run", "p q", "r", "p", "q", "2"]),
        ("A=(1)\nA+=(2 3)\nrun ${A[*]}", ["run", "1", "2", "3"]),
        ("A=1\nA+=2\nrun $A", ["run", "12"]),
        ("run ${A:-5} ${A:=6} $A ${A:+set}", ["run", "5", "6", "6", "set"]),
        ("run a \\\n  b\\\nc", ["run", "a", "bc"]),
        ('run "a \\\n b" x\\ y', ["run", "a  b", "x y"]),
        ("run a >log 2>&1 <in b &> all", ["run", "a", "b"]),
        ("run a | tee log; run b &", ["run", "b"]),
        ("run $@ $* end", ["run", "end"]),
        ("A=x\nif [ $A == x ]; then B=1; elif true; then B=2; else B=3; fi\nrun $B", ["run", "1"]),
        ("A=y\nif [ $A = x ]; then B=1\nelif [[ $A == y* && 3 -gt 2 ]]; then B=2; else B=3; fi\nrun $B",
         ["run", "2"]),
        ("if [ -n \"$A\" ]; then B=1; else B=3; fi\nrun $B", ["run", "3"]),
        ("if ! [ -z $A ]; then B=1; else B=4; fi\nrun $B", ["run", "4"]),
        ('[ -z "$A" ] && B=5\n[ -z "$A" ] || B=6\nrun $B', ["run", "5"]),
        ("A=7B\ncase $A in\n 1*|2*) B=1;;\n 7*) B=2 ;;\n *) B=3;;\nesac\nrun $B", ["run", "2"]),
        ("{ A=1; }\n( B=2 )\nrun $A$B", ["run", "12"]),
        ("A='--x 1'\neval torchrun $A", ["eval", "torchrun", "--x", "1"]),
        ("run a # comment with ' quote\n", ["run", "a"]),
    ],
)  # fmt: skip
def test_followed(text: str, words: list[str]) -> None:
    assert last_command(text) == words


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("run $A", "$A, which is not assigned"),
        ("run $3", "argument $3"),
        ("A=$(nproc)\nrun $A", "$(nproc)"),
        ("A=`nproc`\nrun x$A", "`nproc`"),
        ("A=$(nproc)\nrun $((A*2))", "arithmetic"),
        ("for A in 1 2; do B=$A; done\nrun $B", "line 1"),
        ("while read A; do :; done\nrun $A", "$A"),
        ("if [ -e /etc ]; then A=1; fi\nrun $A", "condition"),
        ("if grep -q x y; then A=1; else A=2; fi\nrun $A", "condition"),
        ("f() { A=1; }\nf\nrun $A", "function"),
        ("A=abc\nrun ${A%c}", "${A%c}"),
        ("run $((1/0))", "arithmetic"),
        ("run $((2**62))", "arithmetic"),
    ],
)
def test_what_is_not_known_says_why(text: str, why: str) -> None:
    script = follow(text)
    found = script.variables.doubt(script.commands[-1][1])
    assert found is not None
    assert why in found


def test_defined_values_replace_what_the_script_assigns() -> None:
    assert last_command("A=1\nB=$((A+1))\nrun $A $B $1", A="5", **{"1": "first"}) == [
        "run",
        "5",
        "6",
        "first",
    ]


def test_here_documents_are_kept_with_their_variables() -> None:
    script = follow('A=4\ncat <<EOT > f.json\n{"x": $A, "y": "${A}"}\nEOT\ncat <<\'E\'\n$A\nE\nrun $A')
    assert script.documents == ['{"x": 4, "y": "4"}', "$A"]
    assert script.commands[-1] == ["run", "4"]


def test_the_script_ends_at_exit() -> None:
    script = follow("A=1\nif [ $A == 1 ]; then\n exit 1\nfi\nA=2")
    assert script.variables.get("A") == "1"
    assert "ends there" in script.notes["line 3"]


@pytest.mark.parametrize(
    "text",
    [
        'run "a',
        "run 'a",
        "A=(1 2",
        "run $(a",
        "run ${a",
        "if [ 1 ]; then",
        "case x in",
        "for a in b; do c",
        "f() {",
    ],
)
def test_what_is_never_closed_is_refused(text: str) -> None:
    with pytest.raises(ScenarioError):
        follow(text)


def test_nothing_is_run(tmp_path: Path) -> None:
    target = tmp_path / "made"
    python = f"__import__('pathlib').Path('{target}').touch()"
    follow(
        f"touch {target}\nA=$(touch {target})\nB=`touch {target}`\nC=$(({python}))\neval touch {target}\n"
        f'if touch {target}; then :; fi\n. {target}.sh\npython -c "{python}"\nx[$(touch {target})]=1\n'
        f"D=${{E:=$(touch {target})}}\ncat <<EOT\n$(touch {target})\nEOT\n"
    )
    assert not target.exists()


@pytest.mark.parametrize(
    "text",
    [
        "A=xxxxxxxxxx\n" + "A=$A$A\n" * 60,
        "A=(x)\n" + "A+=(${A[@]} ${A[@]})\n" * 60,
        "! " * 50_000 + "true",
        "( " * 25_000,
        "run " + "$(" * 25_000,
        "run " + "${a:-" * 10_000 + "}" * 10_000,
        "if true; then " * 1000 + "fi; " * 1000,
        "[ " + "a -o " * 50_000 + "a ]",
        "run $((" + "(" * 400 + "1" + ")" * 400 + "))",
        "'" * 999_999,
        "1> " * 50_000,
    ],
)
def test_hostile_scripts_end_soon(text: str) -> None:
    try:
        follow(text)
    except ScenarioError as error:
        assert len(str(error)) < 400  # noqa: PT017


@examples(200)
@given(st.text(alphabet="aB1=$ (){}[]<>|&;\"'`\\\n#-@*if thenfocasdw", max_size=80))
def test_any_text_is_followed_or_refused(text: str) -> None:
    with suppress(ScenarioError):
        follow(text)


def test_flags_of_a_command() -> None:
    text = "torchrun --nproc_per_node=8 x.py --bf16 --split 1,2 --rampup 16 16 9 --seed 1 --seed -2"
    assert flags_of(text.split()) == {
        "nproc-per-node": "8",
        "bf16": True,
        "split": "1,2",
        "rampup": ["16", "16", "9"],
        "seed": "-2",
    }


@pytest.mark.parametrize(
    ("text", "layers", "prediction"),
    [
        ("Et*2|(tt|)*5t|tmL", (2, 2, 2, 2, 2, 2, 1, 1), 1),
        ("Et*3|(tt|)*29,m|L", (3, *[2] * 29, 0, 0), 1),
        ("Ett|(tt|)*6mL", (2, *[2] * 6, 0), 1),
        ("E|(t|)*10m|m|m|LL", (0, *[1] * 10, 0, 0, 0, 0), 3),
        ("Ettt|ttL", (3, 2), 0),
        ("E(t)*4L", (4,), 0),
        (r"Et*2\\|\\(tt\\|\\)*5t\\|tmL", (2, 2, 2, 2, 2, 2, 1, 1), 1),
    ],
)
def test_layouts(text: str, layers: tuple[int, ...], prediction: int) -> None:
    layout = parse_layout(text, file="f", key="k")
    assert (layout.layers, layout.num_prediction_layers) == (layers, prediction)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Etx|tL", "'x'"),
        ("E(t(t|)*2)*3|L", "nesting"),
        ("ttL", "embedding"),
        ("EtEL", "embedding"),
        ("Ett", "head"),
        ("EtLt", "head"),
        ("EmtL", "prediction"),
        ("EL", "no transformer layer"),
        ("E(t|)*999999999L", "100000"),
        ("Et*99999999999999999999L", "100000"),
        ("E" + "(t*9999)*9999" * 20 + "L", "100000"),
        ("", "no transformer layer"),
    ],
)
def test_layouts_that_cannot_be(text: str, words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        parse_layout(text, file="f", key="k")


@given(first=st.integers(0, 4), repeat=st.integers(1, 9), inner=st.integers(1, 4), last=st.integers(0, 4))
def test_repeats_stand_for_what_they_say(first: int, repeat: int, inner: int, last: int) -> None:
    short = f"E{'t' * first}|({'t' * inner}|)*{repeat}{'t' * last}L"
    written_out = f"E{'t' * first}|" + f"{'t' * inner}|" * repeat + f"{'t' * last}L"
    one, other = (parse_layout(text, file="f", key="k") for text in (short, written_out))
    assert one == other
    assert sum(one.layers) == first + repeat * inner + last


@pytest.mark.parametrize(
    ("value", "result"),
    [
        ("${multiply:4, ${.hidden}}", 256),
        ("${multiply:${training.model.hidden}, 2}", 128),
        ("${divide_ceil:${model.hidden}, 10}", 7),
        ("${divide_floor:64,10}", 6),
        ("${divide:64,8}", 8),
        ("${sum:1,2,3}", 6),
        ("${subtract:5,7}", -2),
        ("${..top}", 3),
        ("x-${model.hidden}", "x-64"),
        ("${oc.env:SIZE,12}", 12),
        ("${SIZE:16}", 16),
        ("${SIZE:true}", True),
        ("plain", "plain"),
        (5, 5),
    ],
)
def test_references(value: Any, result: Any) -> None:
    document = {"top": 3, "model": {"hidden": 64, "x": value}}
    assert resolved(document, file="f", mounted="training")["model"]["x"] == result


@pytest.mark.parametrize(
    "value", ["${nowhere.to}", "${oc.env:SIZE}", "${unknown_resolver:1,2}", "${model}", "${"]
)
def test_references_outside_the_file_stay_unknown(value: str) -> None:
    assert isinstance(resolved({"model": {"x": value}}, file="f")["model"]["x"], Unknown)


@pytest.mark.parametrize(
    "model",
    [
        {"x": "${.x}"},
        {"x": "${.y}", "y": "${.x}"},
        {"x": "${divide:5,2}"},
        {"x": "${divide_ceil:5,0}"},
        {"x": "${multiply:word,2}"},
        {"x": "${multiply:__import__('os'),2}"},
        {"x": "${multiply:999999999999,999999999999}"},
        {f"x{n}": f"${{.x{n + 1}}}${{.x{n + 1}}}" for n in range(60)} | {"x60": "y"},
    ],
)
def test_references_without_end_are_refused(model: dict[str, str]) -> None:
    with pytest.raises(ScenarioError, match="f: model"):
        resolved({"model": model}, file="f")


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("# NOTE: a preset for 128 H100 GPUs.", 128),
        ("x: 1  # assuming 96 GPUs\n# trained on 96x 40GB A100\n# GPUs", 96),
        ("# on 96 A100s", 96),
        ("# 64 GPUs, or 128 GPUs", None),
        ("gpus: 96 GPUs", None),
        ("# 40GB A100", None),
    ],
)
def test_gpus_in_comments(text: str, gpus: int | None) -> None:
    found = gpus_in_comments(text)
    assert (found and found[0]) == gpus


def test_a_place_beyond_any_list_is_not_known(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("A=(1 2)\ntorchrun pretrain_gpt.py --num-layers ${A[" + "9" * 5000 + "]}\n")
    with pytest.raises(ScenarioError, match="num-layers"):
        import_files("megatron", [script])
