"""Orders against those of the installed torch, action for action, and exported files in torch's runtime."""

from itertools import product
from types import SimpleNamespace

import pytest
from helpers import texts

from pipesim.errors import ScheduleError
from pipesim.ir import lower
from pipesim.ir.actions import Schedule
from pipesim.schedules import Shape, families, generate
from pipesim.schedules.frameworks import check_csv, verdict

schedules = pytest.importorskip("torch.distributed.pipelining.schedules")


def stages(p, v):
    """What a schedule's constructor reads of the stages of rank 0."""
    return [
        SimpleNamespace(group_rank=0, group_size=p, num_stages=p * v, submod=None, stage_index=chunk * p)
        for chunk in range(v)
    ]


@pytest.fixture
def without_lowering(monkeypatch):
    """Keep torch's constructors from deriving communication, which takes most of their time."""
    monkeypatch.setattr(
        schedules._PipelineScheduleRuntime, "_prepare_schedule_with_comms", lambda self, actions: None
    )


def torch_orders(torch_name, p, v, m):
    """Actions of each rank as text; None where torch refuses the shape."""
    made = schedules.get_schedule_class(torch_name)
    try:
        schedule = made(stages(p, v), m)
    except ValueError:
        return None
    return [[str(a) for a in schedule.pipeline_order[rank] if a is not None] for rank in range(p)]


def our_orders(name, p, v, m):
    try:
        schedule = generate(name, Shape(p, v, m))
    except ScheduleError:
        return None
    return [[str(action) for action in schedule.actions_of(rank)] for rank in range(p)]


@pytest.mark.parametrize(
    ("name", "torch_name", "chunks"),
    [
        ("interleaved-zb", "InterleavedZeroBubble", (1, 2, 3)),
        ("looped-bfs", "LoopedBFS", (1, 2, 3)),
        ("interleaved-1f1b", "Interleaved1F1B", (1, 2, 3)),
        ("zb-v", "ZBVZeroBubble", (2,)),
        ("dualpipe-v", "DualPipeV", (2,)),
    ],
)
def test_same_orders_and_same_refusals_as_torch(name, torch_name, chunks, without_lowering):
    num_equal = 0
    for p, v, m in product(range(1, 9), chunks, range(1, 35)):
        theirs, ours = torch_orders(torch_name, p, v, m), our_orders(name, p, v, m)
        assert ours == theirs, (p, v, m)
        assert verdict(name, Shape(p, v, m), "torch").accepts == (theirs is not None)
        num_equal += theirs is not None
    assert num_equal >= 100


def test_zb_h1_is_torchs_interleaved_zero_bubble_with_one_chunk(without_lowering):
    for p, m in product(range(1, 9), range(1, 35)):
        theirs = torch_orders("InterleavedZeroBubble", p, 1, m)
        assert verdict("zb-h1", Shape(p, 1, m), "torch").accepts == (theirs is not None)
        if theirs is not None:
            assert our_orders("zb-h1", p, 1, m) == theirs


def load(path, p, v, m, **how):
    runtime = schedules._PipelineScheduleRuntime(stages(p, v), m)
    runtime._load_csv(str(path), **how)
    return runtime


@pytest.mark.parametrize("name", [n for n, chosen in families().items() if not chosen.needs_costs])
def test_exported_file_loads_in_torch_just_where_we_say_so(name, tmp_path):
    chosen = families()[name]
    p, m = 4, 10
    v = chosen.chunks or 2
    schedule = generate(name, Shape(p, v, m))
    path = tmp_path / "schedule.csv"
    path.write_text(schedule.to_csv())
    if chosen.num_model_replicas > 1:
        assert check_csv(schedule.to_csv(), "torch")
        with pytest.raises(AssertionError, match="assigned to both rank"):
            load(path, p, v, m)
        return
    if name == "seq1f1b":
        assert check_csv(schedule.to_csv(), "torch")
        read = [str(action) for action in load(path, p, v, m).pipeline_order[0]]
        assert read[:3] == ["0F0"] * 3, "torch reads a slice as the whole microbatch, without a word"
        return
    assert check_csv(schedule.to_csv(), "torch") == ()
    runtime = load(path, p, v, m)
    for rank in range(p):
        loaded = [str(action) for action in runtime.pipeline_order[rank]]
        assert loaded == [str(action) for action in schedule.actions_of(rank)]


@pytest.mark.parametrize("p", [2, 3, 4])
def test_a_file_that_torch_writes_is_read(p, tmp_path):
    schedule = generate("interleaved-1f1b", Shape(p, 2, 2 * p))
    path = tmp_path / "schedule.csv"
    path.write_text(schedule.to_csv())
    load(path, p, 2, 2 * p)._dump_csv(str(path), format="compute_comms")
    assert "SEND" in path.read_text()
    assert texts(Schedule.from_csv(path.read_text()).compute_only()) == texts(schedule)


@pytest.mark.parametrize(
    ("name", "v"), [("1f1b", 1), ("zb-v", 2), ("v-half", 2), ("dualpipe-v", 2), ("gis", 2)]
)
def test_exported_communication_loads_in_torch_and_is_torchs_own(name, v, tmp_path):
    p, m = 4, 10
    schedule = generate(name, Shape(p, v, m))
    lowered = lower(schedule)
    lowered = lowered.select(lowered.op != lowered.op.max())  # torch has no optimizer action
    text = lowered.to_csv()
    assert check_csv(text, "torch") == ()
    path = tmp_path / "schedule.csv"
    path.write_text(text)
    loaded = load(path, p, v, m, format="compute_comms").pipeline_order_with_comms
    path.write_text(schedule.to_csv())
    runtime = load(path, p, v, m)
    derived = schedules._add_send_recv(
        runtime.pipeline_order, runtime.stage_index_to_group_rank.__getitem__, p * v
    )
    for rank in range(p):
        ours = [str(action) for action in loaded[rank]]
        assert [text for text in ours if "REDUCE" not in text] == [str(action) for action in derived[rank]]


def test_torch_itself_walks_through_our_communication():
    for name, v in (("1f1b", 1), ("zb-v", 2), ("v-min", 2), ("hanayo", 4)):
        schedule = lower(generate(name, Shape(4, v, 8)))
        kept = schedule.select((schedule.op <= 3) | ((schedule.op >= 4) & (schedule.op <= 7)))
        actions = {
            rank: [schedules._Action.from_str(str(action)) for action in kept.actions_of(rank)]
            for rank in range(4)
        }
        homes = {stage: rank for rank in range(4) for stage in kept.stages_of(rank)}
        simulated = schedules._simulate_comms_compute(actions, homes.__getitem__, 4 * v)
        assert sum(action is not None for order in simulated.values() for action in order) == len(kept.op)
