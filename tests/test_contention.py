"""Flows on shared wires: cases worked out by hand, and a second account of max-min fairness, both exact."""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from helpers import costs_of, examples, schedule_of
from hypothesis import given
from hypothesis import strategies as st

from pipesim.costs.network.alpha_beta import LinkCost, Ring
from pipesim.costs.network.fabric import Demand, Flow, UnlikeReplicasError, reduce_wires
from pipesim.costs.network.traffic import Fabric
from pipesim.costs.network.wiring import Wiring
from pipesim.ir import lower
from pipesim.ir.actions import Op
from pipesim.timing.engine import simulate
from pipesim.timing.engine.shared_flows import Network
from pipesim.timing.engine.sharing import fair_rates
from pipesim.timing.engine.simulated_clock import Clock


def ends(capacities, flows, starts, mode="fair"):
    """End of each (flow, time, bytes)."""
    clock = Clock()
    network = Network(clock, capacities, mode)
    streams = {name: network.stream(flow) for name, flow in flows.items()}
    ended = {}

    def transfer(number, name, start_s, nbytes):
        yield clock.timeout(start_s)
        yield network.transfer(streams[name], nbytes, streams[name].flow.latency_s)
        ended[number] = clock.now

    for number, start in enumerate(starts):
        clock.process(transfer(number, *start))
    clock.run()
    return [ended[number] for number in range(len(starts))]


def flow(*wires, rate=1, latency=0):
    return Flow(Fraction(latency), Fraction(rate), tuple((wire, 1) for wire in wires))


ONE = [Fraction(1)]
F = Fraction


def test_alone_is_the_formula():
    assert ends([F(3)], {"a": flow(0, rate=3, latency=2)}, [("a", F(5), F(7))]) == [5 + 2 + F(7, 3)]


def test_equal_sharing():
    flows = {"a": flow(0), "b": flow(0)}
    assert ends(ONE, flows, [("a", F(0), F(10)), ("b", F(0), F(10))]) == [20, 20]
    assert ends(ONE, flows, [("a", F(0), F(10)), ("a", F(0), F(10))]) == [20, 20]


def test_all_reduce_on_four_links_and_a_message_on_one_of_them():
    flows = {"all-reduce": flow(0, 1, 2, 3), "message": flow(0)}
    starts = [("all-reduce", F(0), F(40)), ("message", F(0), F(20))]
    assert ends([F(1)] * 4, flows, starts) == [60, 40]


def test_staggered_flows_of_three_kinds_or_of_one():
    starts = [(F(0), F(10)), (F(2), F(10)), (F(4), F(10))]
    kinds = {name: flow(0) for name in "abc"}
    assert ends(ONE, kinds, [(name, *start) for name, start in zip("abc", starts, strict=True)]) == [
        25,
        29,
        30,
    ]
    assert ends(ONE, kinds, [("a", *start) for start in starts]) == [25, 29, 30]
    assert ends(ONE, kinds, [("a", *start) for start in starts], "fifo") == [10, 20, 30]


def test_what_one_flow_cannot_use_the_others_get():
    """Wire 0 is shared by three, of which one is held to 1/4 by wire 1; the others take 3/8 each."""
    flows = {"slow": flow(0, 1, rate=F(1, 4)), "b": flow(0), "c": flow(0)}
    starts = [(name, F(0), F(3)) for name in flows]
    assert ends([F(1), F(1, 4)], flows, starts) == [9 + (3 - F(9, 4)) / F(1, 4), 8, 8]


def test_latency_occupies_nothing():
    flows = {"a": flow(0, latency=4), "b": flow(0)}
    assert ends(ONE, flows, [("a", F(0), F(4)), ("b", F(0), F(4))]) == [8, 4]


def test_first_come_first_served_on_every_wire():
    flows = {"a": flow(0), "ab": flow(0, 1), "b": flow(1)}
    starts = [("a", F(0), F(4)), ("ab", F(1), F(2)), ("b", F(2), F(1))]
    assert ends([F(1), F(1)], flows, starts, "fifo") == [4, 6, 7]


WIRING = Wiring(4, F(8), F(1), F(2), F(3), nics_per_node=4)


def through(wiring, transfers):
    """End of each (source, destination, bytes), all started at once, on the wires of a cluster."""
    demands = {pair: wiring.transfer([pair[:2]]) for pair in transfers}
    wires = {wire: wiring.bytes_per_s(wire) for demand in demands.values() for wire in demand.loads}
    flows, capacities = reduce_wires(demands, wires)
    # A flow that shares no wire is not for the network; here each gets its own.
    for name, alone in flows.items():
        if not alone.loads:
            flows[name] = replace(alone, loads=((len(capacities), 1),))
            capacities.append(alone.bytes_per_s)
    return ends(capacities, flows, [(pair, F(0), F(pair[2])) for pair in transfers])


def test_devices_that_share_a_card_share_its_rate():
    shared = replace(WIRING, nics_per_node=2)
    apart, together = [(0, 4, 8), (2, 6, 8)], [(0, 4, 8), (1, 5, 8)]
    assert through(WIRING, together) == through(shared, apart) == [3 + 4, 3 + 4]
    assert through(shared, together) == [3 + 8, 3 + 8]


def test_cards_are_full_duplex():
    assert through(WIRING, [(0, 4, 8), (4, 0, 8)]) == [7, 7]
    assert through(WIRING, [(0, 4, 8), (0, 5, 8)]) == [11, 11]


def test_an_oversubscribed_switch_holds_back_what_leaves_the_leaf():
    """Four cards of 2 on one node a leaf with up-links of 4: four flows out get 1 each, one gets its 2."""
    leaf = replace(WIRING, nodes_per_switch=1, oversubscription=F(2))
    assert through(leaf, [(0, 4, 8)]) == [7]
    assert through(leaf, [(device, 4 + device, 8) for device in range(4)]) == [11] * 4
    two_nodes = replace(leaf, nodes_per_switch=2)
    assert through(two_nodes, [(device, 4 + device, 8) for device in range(4)]) == [7] * 4


def test_rails_keep_to_their_own_switch():
    rails = replace(WIRING, nodes_per_switch=2, oversubscription=F(8), rails=True)
    assert through(rails, [(0, 4, 8)]) == [7]
    # From rail 0 to rail 1 the up-link of leaf 0 is crossed: 2 cards of 2 over 8.
    assert through(rails, [(0, 5, 8)]) == [3 + 16]


def test_pairs_have_a_share_of_a_port():
    paired = replace(WIRING, paired=True)
    assert through(WIRING, [(0, 1, 8)]) == [1 + 1]
    assert through(paired, [(0, 1, 8), (0, 2, 8)]) == [1 + 3, 1 + 3]


def test_rings_take_all_pairs_between_their_members():
    """As measured on MI300X: two reach the rate of a pair, eight that of a port (47.7 and 312.9 GB/s)."""
    paired = replace(WIRING, paired=True)
    assert paired.alone_bytes_per_s(paired.rings([[0, 1, 2, 3]])) == 8
    assert paired.alone_bytes_per_s(paired.rings([[0, 1]])) == F(8, 3)


def test_rings_load_ports_and_cards():
    demand = WIRING.rings([[0, 1, 4, 5]])
    assert WIRING.alone_bytes_per_s(demand) == 4
    assert demand.weight == 2
    assert WIRING.alone_bytes_per_s(WIRING.rings([[0, 1, 2, 3]])) == 8
    shared = replace(WIRING, nics_per_node=1)
    assert shared.alone_bytes_per_s(shared.rings([[0, 1, 4, 5], [2, 3, 6, 7]])) == 1


def slow_fair_rates(flows, capacities):
    """Raise all rates together in the smallest step to the next limit, over and over."""
    rates = {number: F(0) for number in range(len(flows))}
    rising = set(rates)
    while rising:
        room = [flows[number].bytes_per_s - rates[number] for number in rising]
        for wire, capacity in enumerate(capacities):
            loads = {n: dict(flows[n].loads).get(wire, 0) for n in rates}
            growth = sum(loads[n] for n in rising)
            if growth:
                room.append((capacity - sum(loads[n] * rates[n] for n in rates)) / growth)
        step = min(room)
        for number in rising:
            rates[number] += step
        full = {
            wire
            for wire, capacity in enumerate(capacities)
            if sum(dict(flows[n].loads).get(wire, 0) * rates[n] for n in rates) == capacity
        }
        rising = {
            n
            for n in rising
            if rates[n] < flows[n].bytes_per_s and not full & {wire for wire, _ in flows[n].loads}
        }
    return [rates[number] for number in range(len(flows))]


def random_network(random):
    capacities = [F(random.randint(1, 6), random.randint(1, 3)) for _ in range(random.randint(1, 5))]
    flows = []
    for _ in range(random.randint(1, 6)):
        wires = random.sample(range(len(capacities)), random.randint(1, len(capacities)))
        loads = tuple((wire, random.choice([1, 1, 2, F(1, 2)])) for wire in wires)
        limit = min(capacities[wire] / load for wire, load in loads)
        flows.append(Flow(F(random.randint(0, 2)), limit, loads))
    return capacities, flows


@examples(60)
@given(st.integers(0, 10**9))
def test_rates_are_those_of_progressive_filling(seed):
    capacities, flows = random_network(Random(seed))
    assert fair_rates([(flow, 1) for flow in flows], capacities) == slow_fair_rates(flows, capacities)


@examples(40)
@given(st.integers(0, 10**9))
def test_transfers_end_as_if_rates_were_worked_out_anew_at_every_moment(seed):
    random = Random(seed)
    capacities, flows = random_network(random)
    starts = [
        (random.randrange(len(flows)), F(random.randint(0, 8)), F(random.randint(1, 9))) for _ in range(8)
    ]
    found = ends(capacities, dict(enumerate(flows)), starts)
    coming = sorted(
        (start_s + flows[kind].latency_s, number) for number, (kind, start_s, _) in enumerate(starts)
    )
    left, expected, now = {}, {}, F(0)
    while coming or left:
        names = sorted(left)
        rates = slow_fair_rates([flows[starts[n][0]] for n in names], capacities) if names else []
        times = [now + left[n] / rate for n, rate in zip(names, rates, strict=True)]
        then = min([*times, *(start_s for start_s, _ in coming[:1])])
        for n, rate in zip(names, rates, strict=True):
            left[n] -= rate * (then - now)
            if left[n] == 0:
                del left[n]
                expected[n] = then
        now = then
        while coming and coming[0][0] == now:
            number = coming.pop(0)[1]
            left[number] = starts[number][2]
    assert found == [expected[number] for number in range(len(starts))]


def test_an_overload_is_bounded():
    """Ten times what the wire carries: as many solutions as starts and ends, whatever the backlog."""
    clock = Clock()
    network = Network(clock, [1.0, 1.0], "fair")
    streams = [network.stream(Flow(0.0, 1.0, loads)) for loads in (((0, 1),), ((0, 1), (1, 1)))]
    arrived = []

    def transfer(stream):
        yield network.transfer(stream, 1.0, 0.0)
        arrived.append(clock.now)

    def source(stream):
        for _ in range(400):
            yield clock.timeout(0.1)
            clock.process(transfer(stream))

    for stream in streams:
        clock.process(source(stream))
    clock.run()
    assert len(arrived) == 800
    assert max(arrived) == pytest.approx(800.1)
    assert network.num_solves <= 3 * 800


# A whole step: two ranks, four replicas, two nodes, so that messages and gradients meet on the cards.


def fabric(num_ranks, num_replicas, wiring):
    axes = (("tp", 1), ("cp", 1), ("dp", num_replicas), ("pp", num_ranks))
    return Fabric(wiring, axes, axes)


def step_costs(num_ranks, num_replicas, wiring, **stated):
    table = costs_of(num_ranks, boundary_bytes=4, p2p_bytes_per_s=2, p2p_latency_s=3, **stated)
    wires = fabric(num_ranks, num_replicas, wiring)
    rate = min(wiring.alone_bytes_per_s(wires.reduction(rank)) for rank in range(num_ranks))
    return replace(
        table,
        gradient_bytes=table.gradient_bytes + F(12),
        gradient_ring=Ring(num_replicas, rate, F(1), F(2)),
        fabric=wires,
    )


SCHEDULE = schedule_of("0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1B0 1F1 1B1 1F2 1B2")


@pytest.mark.parametrize("nics_per_node", [1, 2, 4])
@pytest.mark.parametrize("oversubscription", [None, 3])
def test_one_replica_stands_for_all(nics_per_node, oversubscription):
    wiring = replace(
        WIRING,
        nics_per_node=nics_per_node,
        nodes_per_switch=oversubscription and 1,
        oversubscription=F(oversubscription or 1),
    )
    costs, lowered = step_costs(2, 4, wiring), lower(SCHEDULE)
    folded, every = simulate(lowered, costs), simulate(lowered, costs, num_replicas=4)
    for replica in range(4):
        one = every.select(every.replica == replica)
        assert one.start_s.tolist() == folded.start_s.tolist()
        assert one.end_s.tolist() == folded.end_s.tolist()


def test_replicas_with_other_wires_are_refused_as_one():
    """Six replicas on nodes of four: some messages stay in their node, others leave it."""
    costs = step_costs(2, 6, WIRING)
    with pytest.raises(UnlikeReplicasError):
        simulate(lower(SCHEDULE), costs)
    assert simulate(lower(SCHEDULE), costs, num_replicas=6).replica.max() == 5
    degraded = step_costs(2, 4, replace(WIRING, degraded={1: F(1, 2)}))
    assert (
        simulate(lower(SCHEDULE), degraded).end_s.max()
        > simulate(lower(SCHEDULE), step_costs(2, 4, WIRING)).end_s.max()
    )


def test_gradients_that_share_cards_take_turns_or_share():
    """Two ranks on each of two nodes with one card a node: their all-reduces meet, messages long gone."""
    wiring = Wiring(2, F(8), F(0), F(2), F(0), nics_per_node=1)
    axes = (("tp", 1), ("cp", 1), ("pp", 2), ("dp", 2))
    wires = Fabric(wiring, axes, axes)
    table = costs_of(2)
    costs = replace(
        table,
        gradient_bytes=table.gradient_bytes + F(12),
        gradient_ring=Ring(2, F(2), F(0), F(0)),
        fabric=wires,
    )
    schedule = schedule_of("0F0 0B0", "1F0 1B0")

    def reductions(mode, num_replicas):
        timeline = simulate(lower(schedule), costs, network=mode, num_replicas=num_replicas)
        rows = timeline.op == Op.REDUCE_GRAD
        return sorted(zip(timeline.start_s[rows].tolist(), timeline.end_s[rows].tolist(), strict=True))

    # Rank 1 is done at 4, rank 0 at 6; each has 12 bytes for a card of 2 bytes a second.
    assert reductions("ideal", 1) == [(4, 10), (6, 12)]
    assert reductions("fair", 1) == [(4, 14), (6, 16)]
    assert reductions("fifo", 2) == [(4, 10)] * 2 + [(6, 16)] * 2


def test_tied_embedding_shares_cards_with_gradients():
    """Two nodes of three devices with one card each: rank 1 lies across them, and so do ranks 0 and 2."""
    wiring = Wiring(3, F(8), F(0), F(2), F(0), nics_per_node=1)
    axes = (("tp", 1), ("cp", 1), ("dp", 2), ("pp", 3))
    costs = replace(
        costs_of(3),
        gradient_bytes=np.array([F(0), F(12), F(0)]),
        gradient_ring=Ring(2, F(2), F(0), F(0)),
        tied_embedding_bytes=F(6),
        tied_embedding_ring=Ring(2, F(1), F(0), F(0)),
        fabric=Fabric(wiring, axes, axes),
    )
    lowered = lower(schedule_of("0F0 0B0", "1F0 1B0", "2F0 2B0"), tied_embedding=True)

    def spans(mode):
        timeline = simulate(lowered, costs, network=mode, num_replicas=2)
        tied = timeline.op == Op.REDUCE_EMBEDDING
        reduced = (timeline.op == Op.REDUCE_GRAD) & (timeline.stage == 1)
        return [
            set(zip(timeline.start_s[rows].tolist(), timeline.end_s[rows].tolist(), strict=True))
            for rows in (tied, reduced)
        ]

    # Alone: 6 bytes of two pairs on a card of 2 bytes a second from 9 on; 12 bytes from 7 on.
    assert spans("ideal") == [{(9, 15)}, {(7, 13)}]
    # From 9 on three connections share a card, 2/3 each: 6 bytes until 18, when 2 of 12 are left.
    assert spans("fair") == [{(9, 18)}, {(7, 19)}]


def test_modes_without_a_fabric():
    costs = costs_of(2, boundary_bytes=3, p2p_bytes_per_s=1, forward_s=1)
    schedule = schedule_of("0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1")

    def arrivals(mode):
        timeline = simulate(lower(schedule), costs, network=mode)
        rows = timeline.op == Op.RECV_F
        return timeline.end_s[rows].tolist()

    assert arrivals("fair") == [6, 7]
    assert arrivals("fifo") == [4, 7]
    assert arrivals("ideal") == [4, 5]


def test_reduced_wires_keep_only_what_can_bind():
    demands = {
        "a": Demand(0, {("x", 0, 0): 1, ("y", 0, 0): 2, ("own", 0, 0): 1}),
        "b": Demand(0, {("x", 0, 0): 1, ("y", 0, 0): 2}),
        "c": Demand(0, {("z", 0, 0): 1}),
    }
    capacities = {("x", 0, 0): F(4), ("y", 0, 0): F(6), ("own", 0, 0): F(5), ("z", 0, 0): F(7)}
    flows, left = reduce_wires(demands, capacities)
    assert sorted(left) == [3, 5]
    assert [flows[name].bytes_per_s for name in "abc"] == [3, 3, 7]
    assert flows["c"].loads == ()
    assert [len(flows[name].loads) for name in "ab"] == [2, 1]


def test_same_arguments_same_bytes():
    costs, lowered = step_costs(2, 4, WIRING), lower(SCHEDULE)
    assert all(
        first.end_s.tolist() == second.end_s.tolist()
        for first, second in pairwise(simulate(lowered, costs, num_replicas=4) for _ in range(3))
    )
    assert LinkCost(F(3), F(2)).transfer_s(4) == 5
