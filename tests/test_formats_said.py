"""Who refuses a file says which files it takes; so does --help."""

import pytest
from typer.testing import CliRunner

from pipesim.cli.app import app
from pipesim.errors import PipesimError
from pipesim.evidence.calibration.sources import read_samples
from pipesim.evidence.calibration.step_times import read_steps
from pipesim.importers.readers import READERS, import_files
from pipesim.show.figures.sweep_pictures import read_sweep
from pipesim.show.glossary import MEASURED_FILES, ORDER_FILE, SCENARIO_FILE, STEPS_FILE, SWEEP_FILE


@pytest.fixture
def letter(tmp_path):
    file = tmp_path / "letter.txt"
    file.write_text("Dear Sir or Madam\n")
    return file


@pytest.mark.parametrize("tool", READERS)
def test_a_reader_says_what_it_reads(letter, tool):
    with pytest.raises(PipesimError) as refused:
        import_files(tool, letter)
    words = READERS[tool].what
    assert words in str(refused.value) or (
        tool == "internevo" and "as InternEvo's files do" in str(refused.value)
    )


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (lambda file: read_samples([file]), MEASURED_FILES),
        (lambda file: read_steps(file, None), STEPS_FILE),
        (read_sweep, SWEEP_FILE),
    ],
)
def test_a_verb_says_what_it_reads(letter, read, words):
    with pytest.raises(PipesimError) as refused:
        read(letter)
    assert words in str(refused.value)


def test_json_of_another_kind_is_told_as_well(letter):
    letter.write_text('{"a": 1}')
    with pytest.raises(PipesimError) as refused:
        read_samples([letter])
    assert MEASURED_FILES in str(refused.value)


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        *((verb, SCENARIO_FILE) for verb in ("simulate", "compare", "plan", "sweep", "report", "execute")),
        *(("calibrate", words) for words in (MEASURED_FILES, STEPS_FILE)),
        ("tune", MEASURED_FILES),
        ("schedule check", ORDER_FILE),
        ("plot sweep", SWEEP_FILE.removeprefix("a ")),
    ],
)
def test_help_says_what_a_file_holds(verb, words):
    shown = CliRunner().invoke(
        app, [*verb.split(), "--help"], env={"COLUMNS": "200", "TERMINAL_WIDTH": "200"}
    )
    assert "".join(words.split()) in "".join(shown.stdout.split())
