"""Small builders that several tests share: schedules from text or by chance, exact costs, makespans."""

from collections.abc import Sequence
from fractions import Fraction
from random import Random

from hypothesis import settings

from pipesim.costs import CostTable
from pipesim.costs.direct import direct_costs
from pipesim.costs.rows import row_delays, row_durations
from pipesim.ir import dependencies
from pipesim.ir.actions import Action, Op, Schedule, overlap
from pipesim.ir.timeline import Timeline
from pipesim.scenario.resolved import DirectCosts
from pipesim.timing.longest_path import Spans, evaluate


def examples(number: int) -> settings:
    """As many examples of a property, in the suite the share of them that its profile says."""
    return settings(max_examples=max(1, number * settings.default.max_examples // 100))


def schedule_of(*orders: str) -> Schedule:
    """One string a rank, actions apart by blanks: ``schedule_of("0F0 0B0", "1F0 1B0")``."""
    parsed = [[Action.parse(cell) for cell in text.split()] for text in orders]
    return Schedule.from_orders("hand-made", parsed)


def texts(schedule: Schedule) -> list[str]:
    """The inverse of `schedule_of`."""
    return [" ".join(map(str, schedule.actions_of(rank))) for rank in range(schedule.num_ranks)]


def costs_of(num_ranks: int, num_chunks: int = 1, *, number=Fraction, **stated) -> CostTable:
    """Direct costs, fractions unless `number` says otherwise: F 1, B 2, and the rest 0 unless stated."""
    fields = {
        "forward_s": 1,
        "backward_s": 2,
        "input_gradient_s": None,
        "weight_gradient_s": None,
        "p2p_latency_s": 0,
        "p2p_bytes_per_s": None,
        "boundary_bytes": 0,
        "overlapped_pair_s": None,
        "gradient_sync_s": 0,
        "optimizer_s": 0,
        "activation_bytes": 0,
    }

    def convert(value):
        if value is None:
            return None
        return tuple(map(number, value)) if isinstance(value, Sequence) else number(value)

    assert stated.keys() <= fields.keys()
    converted = {key: convert(value) for key, value in (fields | stated).items()}
    return direct_costs(DirectCosts(**converted), num_ranks=num_ranks, num_chunks=num_chunks)


def random_fraction(random: Random, most: int = 4) -> Fraction:
    """Positive, at most `most`, with a small denominator that differs from draw to draw."""
    denominator = random.randint(1, 7)
    return Fraction(random.randint(1, most * denominator), denominator)


def random_costs(random: Random, schedule: Schedule, **stated) -> CostTable:
    """Uneven stages, and an F, B, I and W of their own for each."""

    def uneven():
        return tuple(random_fraction(random) for _ in range(schedule.num_stages))

    names = ("forward_s", "backward_s", "input_gradient_s", "weight_gradient_s", "overlapped_pair_s")
    return costs_of(schedule.num_stages, **{name: uneven() for name in names} | stated)


def longest_path(schedule: Schedule, costs: CostTable) -> Spans:
    """Evaluate a compute-only schedule with what the costs say of an idle network."""
    delays = row_delays(schedule, dependencies(schedule), costs)
    return evaluate(schedule, row_durations(schedule, costs).tolist(), delays.tolist())


def makespan(timeline: Timeline):
    """From the first start to the last end of the computations."""
    return max(timeline.end_s[timeline.compute]) - min(timeline.start_s[timeline.compute])


def random_schedule(random: Random) -> Schedule:
    """Draw a schedule that can run: walk the dependency graph from its roots, picking what is ready.

    Draws ranks, chunks, microbatches, slices, the placement (loop, V, or two model replicas that run in
    opposite directions) and, for every backward, whether it is split; some neighbours become a pair.
    """
    placement = random.choice(["loop", "v", "two replicas"])
    num_ranks = random.randint(1, 4)
    num_chunks = 2 if placement == "v" else 1 if placement == "two replicas" else random.randint(1, 3)
    num_stages, num_microbatches = num_ranks * num_chunks, random.randint(1, 4)
    num_slices = random.choice([1, 1, 2, 3])
    share_split, share_joined = random.choice([0, 0.5, 1]), random.choice([0, 0.5])

    def rank_of(stage, microbatch):
        if placement == "v":
            return min(stage, num_stages - 1 - stage)
        mirrored = placement == "two replicas" and microbatch % 2
        return num_ranks - 1 - stage if mirrored else stage % num_ranks

    needs: dict[Action, list[Action]] = {}
    for stage in range(num_stages):
        for microbatch in range(num_microbatches):
            for part in range(num_slices):
                key = (stage, microbatch, part)
                split = random.random() < share_split
                needs[Action(Op.F, *key)] = [
                    Action(Op.F, *earlier)
                    for earlier in ((stage - 1, microbatch, part), (stage, microbatch, part - 1))
                    if min(earlier) >= 0
                ]
                needs[Action(Op.I if split else Op.B, *key)] = [Action(Op.F, *key)]
                if split:
                    needs[Action(Op.W, *key)] = [Action(Op.I, *key)]
    backward_of = {action[1:4]: action for action in needs if action.op in (Op.B, Op.I)}
    for (stage, microbatch, part), action in backward_of.items():
        for later in ((stage + 1, microbatch, part), (stage, microbatch, part + 1)):
            if later in backward_of:
                needs[action].append(backward_of[later])

    orders: list[list[Action]] = [[] for _ in range(num_ranks)]
    done: set[Action] = set()
    waiting = sorted(needs)
    while waiting:
        ready = [action for action in waiting if done.issuperset(needs[action])]
        chosen = [random.choice(ready)]
        rank = rank_of(*chosen[0][1:3])
        partners = [action for action in ready if action.op is Op.B and rank_of(*action[1:3]) == rank]
        if chosen[0].op is Op.F and partners and random.random() < share_joined:
            chosen.append(random.choice(partners))
            orders[rank].append(overlap(*chosen))
        else:
            orders[rank].append(chosen[0])
        done.update(chosen)
        waiting = [action for action in waiting if action not in chosen]
    return Schedule.from_orders("random", orders)


FEW_TERMS = {
    "gemm": 0.7262,
    "gemm_fp8": 0.6775,
    "attention": 0.5,
    "attention_kernel": "flash",
    "memory": 0.85,
    "layer_overhead": "0.573 ms",
    "tensor_collective_factor": 0.3599,
    "intra_node_bandwidth_factor": 1,
    "unaligned_gemm": 1,
    "grouped_gemm": 0.86,
    "operand_traffic": False,
    "quantise_bytes": {},
    "sort_passes": None,
    "gradient_overlap": False,
}
"""An efficiency set of which every term can be worked out by hand; of tests, not of software."""
