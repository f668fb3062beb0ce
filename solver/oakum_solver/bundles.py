"""Which slots a trainer gets whose fragments have several slots of one host each.

A plan is an integer count for each (trainer, pool), as ever; here the counts are laid out on hosts. What a trainer
holds there is in pieces, each kept as a whole or given up: a fragment's slots, or single ones. With

    keep[c, j, s]  the pieces of s slots that trainer j keeps in cell c, a host's slots of one pool,
    new[c, k]      the new bundles in it of trainers of kind k, s(c, k) slots each,

a choice of compositions n_j[g] for the pools g can be laid out if and only if there are integers with

    for each c:     sum over j, s of s keep[c, j, s] + sum over k of s(c, k) new[c, k] <= slots of c,
    for each j, g:  sum over c in g and s of s keep[c, j, s] = min(n_j[g], held_j[g]),
    for each k, g:  sum over c in g of s(c, k) new[c, k] = sum over j of kind k of max(0, n_j[g] - held_j[g]).

Trainers with bundles of one size are one kind, since any of their new bundles are alike; one that takes whole
hosts, whose sizes differ, is a kind of its own. `place` finds such integers greedily, and `constrain` adds the
conditions to the MILP, whose variables choose the compositions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pulp

from oakum_solver.milp import CompositionOption
from oakum_solver.pools import Composition
from oakum_solver.problem import Bundle, Host
from oakum_solver.value import ValueModel

Grants = dict[str, tuple[str, ...]]
Kind = int | str
"""Trainers whose new bundles are alike: the slots of a bundle, or the id of a trainer that takes whole hosts."""
_Piece = tuple[str, ...]


def possible_sizes(bundle: Bundle, hosts: Iterable[Host], most: int) -> tuple[int, ...]:
    """The numbers of slots, rising and up to `most`, that a trainer could have if all slots of these hosts that
    are in the problem were its own."""
    if bundle != "host":
        slots = sum(len(host.nodes) // bundle * bundle for host in hosts)
        return tuple(range(bundle, min(slots, most) + 1, bundle))
    return sums_of((host.size for host in hosts if len(host.nodes) == host.size), most)


def sums_of(sizes: Iterable[int], most: int) -> tuple[int, ...]:
    """The numbers, rising and from 1 to `most`, that are a sum of some of these sizes, each taken at most once."""
    sums = 1  # bit n is set where n is such a sum
    for size in sizes:
        sums |= (sums << size) & ((1 << most + 1) - 1)
    return tuple(number for number in range(1, most + 1) if sums >> number & 1)


@dataclass(frozen=True)
class _Cell:
    """The slots of one host in one pool, or all nodes of a pool that are hosts of their own."""

    pool: int
    nodes: tuple[str, ...]
    """The preferred ones first."""
    size: int | None
    """Number of slots of the host, in the problem or not; None for nodes that are hosts of their own."""
    pieces: Mapping[int, Sequence[_Piece]]
    """Index of a trainer -> what it holds here, each piece kept as a whole or given up."""
    num_free: int
    """Number of nodes that no trainer holds."""

    def bundle(self, bundle: Bundle) -> int:
        """How many slots of the cell a fragment with this bundle would have; 0 where it can have none."""
        if self.size is None:
            return int(bundle in (1, "host"))
        if bundle == "host":
            return self.size if len(self.nodes) == self.size else 0
        return bundle if len(self.nodes) >= bundle else 0

    def sizes_of(self, j: int) -> Counter[int]:
        """Number of slots of a piece -> how many such pieces trainer j holds here."""
        return Counter(len(piece) for piece in self.pieces.get(j, ()))


@dataclass
class Layout:
    """Which pieces stay and where new bundles are, in the terms of the module's docstring."""

    keep: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    """(cell, trainer's index, slots of a piece) -> number of such pieces that stay."""
    new: Counter[tuple[int, Kind]] = field(default_factory=Counter)
    """(cell, kind) -> number of new bundles."""


class Cells:
    """The cells of a problem, on which compositions are laid out."""

    def __init__(self, model: ValueModel) -> None:
        self.model = model
        self.kinds: list[Kind] = [t.id if t.bundle == "host" else t.bundle for t in model.trainers]
        """Kind of each trainer."""
        self._bundles: dict[Kind, Bundle] = {
            kind: trainer.bundle for kind, trainer in zip(self.kinds, model.trainers, strict=True)
        }
        self._owner: dict[str, int] = {}
        self.cells = self._cells()

    def _cells(self) -> list[_Cell]:
        problem = self.model.problem
        index = {trainer.id: j for j, trainer in enumerate(problem.trainers)}
        pool_of: dict[str, int] = {}
        for group, pool in zip(problem.groups, self.model.pools.of_group, strict=True):
            pool_of |= dict.fromkeys(group.nodes, pool)
            if group.owner is not None:
                self._owner |= dict.fromkeys(group.nodes, index[group.owner])
        host_of = {node: number for number, host in enumerate(problem.hosts) for node in host.nodes}
        nodes: dict[tuple[int, int], list[str]] = defaultdict(list)
        for node, pool in pool_of.items():
            nodes[host_of.get(node, -1), pool].append(node)
        return [
            self._cell(pool, tuple(names), None if number < 0 else problem.hosts[number])
            for (number, pool), names in nodes.items()
        ]

    def _cell(self, pool: int, nodes: tuple[str, ...], host: Host | None) -> _Cell:
        inside = set(nodes)
        together = {} if host is None else {node: bundle for bundle in host.bundles for node in bundle}
        pieces: dict[int, list[_Piece]] = defaultdict(list)
        for node in nodes:
            if (j := self._owner.get(node)) is None:
                continue
            bundle = tuple(other for other in together.get(node, ()) if other in inside) or (node,)
            if bundle[0] == node:
                pieces[j].append(bundle)
        num_free = sum(node not in self._owner for node in nodes)
        return _Cell(pool, nodes, None if host is None else host.size, pieces, num_free)

    def constrain(
        self,
        lp: pulp.LpProblem,
        chosen: Sequence[pulp.LpVariable],
        choices: Sequence[CompositionOption],
        compositions: Sequence[Composition],
    ) -> None:
        """Add to the MILP that the chosen compositions can be laid out: the conditions of the module's
        docstring."""
        kept: dict[tuple[int, int], pulp.LpAffineExpression] = defaultdict(pulp.LpAffineExpression)
        new: dict[tuple[Kind, int], pulp.LpAffineExpression] = defaultdict(pulp.LpAffineExpression)
        for number, cell in enumerate(self.cells):
            used = pulp.LpAffineExpression()
            for j in cell.pieces:
                for slots, count in cell.sizes_of(j).items():
                    keep = lp.add_variable(_keep(number, j, slots), 0, count, pulp.LpInteger)
                    kept[j, cell.pool] += slots * keep
                    used += slots * keep
            for position, (kind, bundle) in enumerate(self._bundles.items()):
                if not (slots := cell.bundle(bundle)):
                    continue
                more = lp.add_variable(_new(number, position), 0, len(cell.nodes) // slots, pulp.LpInteger)
                new[kind, cell.pool] += slots * more
                used += slots * more
            lp += used <= len(cell.nodes)
        for x, choice, composition in zip(chosen, choices, compositions, strict=True):
            j = choice.trainer_index
            held = self.model.pools.held[j]
            for pool, count in composition.items():
                kept[j, pool] -= min(count, held.get(pool, 0)) * x
                new[self.kinds[j], pool] -= max(0, count - held.get(pool, 0)) * x
        for balance in (*kept.values(), *new.values()):
            lp += balance == 0

    def read(self, values: Mapping[str, float]) -> Layout:
        """The layout that a solver found, by the names of the variables."""
        layout = Layout()
        for number, cell in enumerate(self.cells):
            for j in cell.pieces:
                for slots in cell.sizes_of(j):
                    layout.keep[number, j, slots] = round(values[_keep(number, j, slots)])
            for position, (kind, bundle) in enumerate(self._bundles.items()):
                if cell.bundle(bundle):
                    layout.new[number, kind] = round(values[_new(number, position)])
        return layout

    def place(self, compositions: Sequence[Composition]) -> Layout | None:
        """A layout of the compositions; None where this greedy way finds none, although there may be one.

        What shrinks keeps slots on the fullest hosts, and new bundles go where least room is left over.
        """
        return _Placing(self, compositions).layout()

    def bundle_of(self, kind: Kind) -> Bundle:
        """The bundle of the trainers of this kind."""
        return self._bundles[kind]

    def named(self, compositions: Sequence[Composition], layout: Layout) -> Grants:
        """Trainer id -> names of its nodes in the layout: those that it keeps, in their present order, then the
        new ones, nodes that are free before those that others give up."""
        problem = self.model.problem
        kept: set[str] = set()
        stock: dict[tuple[Kind, int], list[_Piece]] = defaultdict(list)
        for number, cell in enumerate(self.cells):
            here = {node for piece in self._kept_here(number, layout) for node in piece}
            kept |= here
            rest = sorted((n for n in cell.nodes if n not in here), key=lambda node: node in self._owner)
            for kind in sorted(self._bundles, key=lambda kind: -cell.bundle(self._bundles[kind])):
                slots = cell.bundle(self._bundles[kind])
                for _ in range(layout.new[number, kind]):
                    stock[kind, cell.pool].append(tuple(rest[:slots]))
                    rest = rest[slots:]
        grants: Grants = {}
        for j, composition in enumerate(compositions):
            held = self.model.pools.held[j]
            nodes = [node for node in problem.held[problem.trainers[j].id] if node in kept]
            for pool, count in composition.items():
                missing, bundles = count - held.get(pool, 0), stock[self.kinds[j], pool]
                while missing > 0:
                    bundle = bundles.pop(0)
                    nodes += bundle
                    missing -= len(bundle)
            grants[problem.trainers[j].id] = tuple(nodes)
        return grants

    def _kept_here(self, number: int, layout: Layout) -> Iterable[_Piece]:
        for j, pieces in self.cells[number].pieces.items():
            left = {slots: layout.keep[number, j, slots] for slots in self.cells[number].sizes_of(j)}
            for piece in pieces:
                if left[len(piece)] > 0:
                    left[len(piece)] -= 1
                    yield piece


def _keep(cell: int, j: int, slots: int) -> str:
    return f"keep_{cell}_{j}_{slots}"


def _new(cell: int, kind: int) -> str:
    return f"new_{cell}_{kind}"


class _Placing:
    """One greedy layout in the making."""

    def __init__(self, cells: Cells, compositions: Sequence[Composition]) -> None:
        self._cells = cells
        self._compositions = compositions
        self._layout = Layout()
        self._room = [len(cell.nodes) for cell in cells.cells]
        """Number of nodes of each cell that are not given out yet."""
        self._free = [cell.num_free for cell in cells.cells]
        """Those of them that no trainer holds now."""

    def layout(self) -> Layout | None:
        held = self._cells.model.pools.held
        by_need = sorted(
            ((j, pool, count) for j, after in enumerate(held) for pool, count in after.items()),
            key=lambda item: self._compositions[item[0]].get(item[1], 0) < item[2],
        )
        for j, pool, count in by_need:  # those that keep all first
            if not self._keep(j, pool, min(count, self._compositions[j].get(pool, 0))):
                return None
        more = [
            (j, pool, count - held[j].get(pool, 0))
            for j, after in enumerate(self._compositions)
            for pool, count in after.items()
            if count > held[j].get(pool, 0)
        ]
        for j, pool, count in sorted(more, key=lambda item: -self._rank(item[0])):
            if not self._add(self._cells.kinds[j], pool, count):
                return None
        return self._layout

    def _rank(self, j: int) -> float:
        bundle = self._cells.model.trainers[j].bundle
        return float("inf") if bundle == "host" else bundle

    def _in_pool(self, pool: int) -> list[int]:
        return [number for number, cell in enumerate(self._cells.cells) if cell.pool == pool]

    def _keep(self, j: int, pool: int, need: int) -> bool:
        """Let trainer j keep `need` of its slots in the pool, on the fullest hosts; False where pieces do not make
        up so many."""
        for number in sorted(self._in_pool(pool), key=lambda number: self._room[number]):
            for piece in self._cells.cells[number].pieces.get(j, ()):
                if len(piece) <= need:
                    need -= len(piece)
                    self._room[number] -= len(piece)
                    self._layout.keep[number, j, len(piece)] += 1
        return need == 0

    def _add(self, kind: Kind, pool: int, need: int) -> bool:
        """Place new bundles of `need` slots in all; False where that cannot be."""
        bundle = self._cells.bundle_of(kind)
        while need > 0:
            fitting = [
                number
                for number in self._in_pool(pool)
                if 0 < (slots := self._cells.cells[number].bundle(bundle)) <= min(need, self._room[number])
            ]
            if not fitting:
                return False
            number = min(fitting, key=lambda number: self._preference(number, bundle))
            slots = self._cells.cells[number].bundle(bundle)
            self._layout.new[number, kind] += 1
            self._room[number] -= slots
            self._free[number] -= min(self._free[number], slots)
            need -= slots
        return True

    def _preference(self, number: int, bundle: Bundle) -> tuple[bool, bool, int]:
        """Sort key: where slots are free, then on hosts that are in use, then where least is left over."""
        cell = self._cells.cells[number]
        slots, is_whole = cell.bundle(bundle), self._room[number] == cell.size
        least = -slots if bundle == "host" else self._room[number]
        return self._free[number] < slots, is_whole and bundle != "host", least
