"""Process groups of generations, formed and broken off between real processes."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

import psutil
import pytest
import torch
import torch.distributed as dist

from oakum_worker.errors import GroupError
from oakum_worker.parallel.group import GenerationGroup
from oakum_worker.parallel.waiting import broadcast, wait_for_message
from oakum_worker.protocol import Endpoint, Generation, Member
from rank_processes import fork_context
from waiting import DEADLINE_S, wait_until

_LARGE = 16 << 20
"""Number of elements of a tensor of which a part stays on its way while nobody reads it."""


def _generation(number: int, *endpoints: Endpoint) -> Generation:
    return Generation(
        number=number,
        members=tuple(Member(fragment=f"f{e.port}", node="n", ranks=(e,)) for e in endpoints),
    )


def _rank(line: Connection) -> None:
    """Carry out (method, arguments) pairs from the pipe, and send back the result of each."""
    torch.set_num_threads(1)
    group = GenerationGroup("127.0.0.1")
    line.send(group.endpoint)
    formed: dist.ProcessGroup | None = None
    cutter: threading.Timer | None = None
    begun: list[tuple[dist.Work, torch.Tensor]] = []
    failure = ""
    while True:
        method, *arguments = line.recv()
        began_s = time.monotonic()
        try:
            if method == "form":
                formed = group.form(*arguments)
                line.send("formed")
            elif method == "cut later":
                delay_s, up_to = arguments
                cutter = threading.Timer(delay_s, group.cut, (up_to,))
                cutter.start()
                line.send("ok")
            elif method == "cut forming later":
                delay_s, below = arguments
                threading.Timer(delay_s, group.cut_forming, (below,)).start()
                line.send("ok")
            elif method == "cut while connecting":
                _cut_while_connecting(group, *arguments)
                line.send("ok")
            elif method == "cut in mid-transfer":
                threading.Thread(target=_cut_in_mid_transfer, args=(group, *arguments)).start()
                line.send("ok")
            elif method == "sum":
                value = torch.ones(1)
                dist.all_reduce(value, group=formed)
                line.send(value.item())
            elif method == "begin to take":
                begun.append(_begin_to_take(formed, *arguments))
                line.send("begun")
            elif method == "give":
                _give(formed, *arguments)
                line.send("given")
            elif method == "leave":
                group.leave()
                line.send("left")
            elif method == "why":
                line.send(failure)
        except (GroupError, RuntimeError) as error:
            failure = str(error)
            line.send((type(error).__name__, time.monotonic() - began_s))


def _begin_to_take(group: dist.ProcessGroup, way: str) -> tuple[dist.Work, torch.Tensor]:
    """Ask rank 0 for a large tensor, without waiting for it. Returns what has to be kept meanwhile."""
    num_before = _num_bytes_sent()
    tensor = torch.empty(_LARGE)
    work = group.broadcast(tensor, 0) if way == "broadcast" else group.recv([tensor], 0, 0)
    wait_until("gloo has asked for the message", lambda: _num_bytes_sent() > num_before)
    return work, tensor


def _give(group: dist.ProcessGroup, way: str) -> None:
    """Send a large tensor to rank 1, and wait until it has been sent."""
    tensor = torch.ones(_LARGE)
    if way == "broadcast":
        broadcast(tensor, group, 0)
    else:
        wait_for_message(group.send([tensor], 1, 0), tensor)


def _cut_while_connecting(group: GenerationGroup, below: int) -> None:
    """Cut the next group that is formed, below a generation, when its ranks have met and before they connect."""
    connect = dist.init_process_group

    def cut_and_connect(*arguments: object, **options: object) -> None:
        dist.init_process_group = connect
        group.cut_forming(below)
        connect(*arguments, **options)

    dist.init_process_group = cut_and_connect


def _cut_in_mid_transfer(group: GenerationGroup, up_to: int) -> None:
    """Wait until one of this process's connections is full, since its other end does not read, and cut the
    generations up to `up_to`."""
    wait_until("a message is on its way in part", _some_connection_is_full)
    group.cut(up_to)


def _some_connection_is_full() -> bool:
    connections = _connections()
    return select.select([], connections, [], 0)[1] != connections


def _num_bytes_sent() -> int:
    """Bytes that this process's connections have sent and whose receipt was acknowledged; see `tcp_info` in
    linux/tcp.h."""
    total = 0
    for descriptor in _connections():
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)
        total += int.from_bytes(info[120:128], sys.byteorder)
    return total


def _connections() -> list[int]:
    """Descriptors of the sockets of this process that are connected over TCP."""
    found = psutil.Process().net_connections("tcp")
    return [each.fd for each in found if each.status == psutil.CONN_ESTABLISHED]


class Rank:
    """A rank in a process of its own, whose first answer is its endpoint."""

    endpoint: Endpoint

    def __init__(self) -> None:
        context = fork_context()
        self._line, theirs = context.Pipe()
        self.process: ForkServerProcess = context.Process(target=_rank, args=(theirs,), daemon=True)
        self.process.start()

    def tell(self, *command: object) -> None:
        self._line.send(command)

    def answer(self) -> object:
        assert self._line.poll(DEADLINE_S), f"no answer within {DEADLINE_S:g} s"
        return self._line.recv()

    def ask(self, *command: object) -> object:
        self.tell(*command)
        return self.answer()


@pytest.fixture
def ranks() -> list[Rank]:
    """Three ranks, started side by side."""
    started = [Rank() for _ in range(3)]
    try:
        for rank in started:
            rank.endpoint = rank.answer()
        yield started
    finally:
        for rank in started:
            rank.process.kill()
            rank.process.join()


def _form_all(ranks: list[Rank], number: int) -> list[object]:
    generation = _generation(number, *(rank.endpoint for rank in ranks))
    for index, rank in enumerate(ranks):
        rank.tell("form", generation, index)
    return [rank.answer() for rank in ranks]


def test_a_generation_follows_another_in_the_same_processes(ranks: list[Rank]) -> None:
    assert _form_all(ranks, 1) == ["formed"] * 3
    for rank in ranks:
        rank.tell("sum")
    assert [rank.answer() for rank in ranks] == [3.0] * 3
    assert [rank.ask("leave") for rank in ranks] == ["left"] * 3
    assert _form_all(ranks[1:], 2) == ["formed"] * 2


def test_a_group_that_has_formed_takes_no_strangers_connection(ranks: list[Rank]) -> None:
    """gloo would keep each of them, and end the process when it can keep no more."""
    assert _form_all(ranks, 1) == ["formed"] * 3
    for rank in ranks:
        listening = [one.laddr for one in psutil.Process(rank.process.pid).net_connections("tcp") if not one.raddr]
        assert {address.ip for address in listening} == {"127.0.0.1"}
        [gloo] = {address.port for address in listening} - {rank.endpoint.port}
        with pytest.raises(TimeoutError):
            socket.create_connection(("127.0.0.1", gloo), timeout=0.3)
        socket.create_connection(("127.0.0.1", rank.endpoint.port), timeout=DEADLINE_S).close()
    for rank in ranks:
        rank.tell("sum")
    assert [rank.answer() for rank in ranks] == [3.0] * 3


def test_a_rendezvous_that_was_broken_off_does_not_spoil_the_next(ranks: list[Rank]) -> None:
    """One rank waited in vain for a peer; the next generation has that rank and a fresh one."""
    first, absent, fresh = ranks
    first.ask("cut forming later", 0.3, 2)
    kind, _ = first.ask("form", _generation(1, first.endpoint, absent.endpoint), 0)
    assert kind == "GroupError"
    assert _form_all([first, fresh], 2) == ["formed"] * 2


def test_a_rank_that_is_cut_while_all_connect_leaves_nobody_waiting_for_its_connection(ranks: list[Rank]) -> None:
    """Nothing could end such a wait, and whoever waited would be taken for hanging."""
    first, cut, last = ranks
    cut.ask("cut while connecting", 2)
    for rank in (first, last):
        rank.ask("cut forming later", 1.0, 2)
    answers = _form_all(ranks, 1)
    assert [kind for kind, _ in answers] == ["GroupError"] * 3
    assert max(waited_s for _, waited_s in answers) < 10.0
    assert "it is over already" in str(cut.ask("why")), "it has not gone before all had connected"


def test_a_rendezvous_with_a_dead_rank_fails_at_once(ranks: list[Rank]) -> None:
    dead, other = ranks[0], ranks[1]
    generation = _generation(1, dead.endpoint, other.endpoint)
    dead.process.kill()
    dead.process.join()
    kind, waited_s = other.ask("form", generation, 1)
    assert kind == "GroupError"
    assert waited_s < 10.0


def test_a_rendezvous_whose_rank_0_goes_while_it_is_looked_for_fails_soon(ranks: list[Rank]) -> None:
    """It still answers when it is first asked, and nobody listens a moment later."""
    listening = socket.create_server(("127.0.0.1", 0))
    going = Endpoint(host="127.0.0.1", port=listening.getsockname()[1])

    def answer_once() -> None:
        listening.accept()[0].close()
        listening.close()

    threading.Thread(target=answer_once).start()
    kind, waited_s = ranks[0].ask("form", _generation(1, going, ranks[0].endpoint), 1)
    assert kind == "GroupError"
    assert waited_s < 10.0


def test_cutting_frees_a_rank_from_a_peer_that_hangs(ranks: list[Rank]) -> None:
    """Two ranks are in the collective, the third never comes; a cut ends their wait."""
    _form_all(ranks, 1)
    for rank in ranks[:2]:
        rank.ask("cut later", 0.3, 1)
        rank.tell("sum")
    answers = [rank.answer() for rank in ranks[:2]]
    assert [kind for kind, _ in answers] == ["RuntimeError"] * 2
    assert max(waited_s for _, waited_s in answers) < 10.0
    assert [rank.ask("leave") for rank in ranks[:2]] == ["left"] * 2
    assert _form_all(ranks[:2], 2) == ["formed"] * 2


@pytest.mark.parametrize("way", ["broadcast", "message"])
def test_a_cut_frees_a_rank_whose_message_is_on_its_way_in_part(ranks: list[Rank], way: str) -> None:
    """gloo loses the error: neither the wait nor the destructor of a group with such a collective would end."""
    giver, taker, fresh = ranks
    _form_all([giver, taker], 1)
    assert taker.ask("begin to take", way) == "begun"
    os.kill(taker.process.pid, signal.SIGSTOP)
    giver.ask("cut in mid-transfer", 1)
    kind, waited_s = giver.ask("give", way)
    assert kind == "DistNetworkError"
    assert waited_s < 10.0
    assert giver.ask("leave") == "left"
    assert _form_all([giver, fresh], 2) == ["formed"] * 2
    for rank in (giver, fresh):
        rank.tell("sum")
    assert [rank.answer() for rank in (giver, fresh)] == [2.0] * 2


def test_a_cut_of_older_generations_leaves_the_present_one_alone(ranks: list[Rank]) -> None:
    _form_all(ranks, 5)
    for rank in ranks:
        rank.ask("cut later", 0.0, 4)
        rank.tell("sum")
    assert [rank.answer() for rank in ranks] == [3.0] * 3
