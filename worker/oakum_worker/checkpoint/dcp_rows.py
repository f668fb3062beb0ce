"""One checkpoint in DCP's format, written by many ranks and read by any number, each its own rows.

DCP's own `save` plans in collectives. Here every rank knows from the layout alone what is in the others' files,
save for byte positions, which whoever writes tells the one who joins the files. So nobody waits in a collective
for a rank that may be gone, and the group that trains is left alone.

Imported late, as `dcp_files` is.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import WriteResult

from oakum_worker.checkpoint.dcp_files import own_errors
from oakum_worker.parallel.layout import Holdings, Part, Place, Rows, SplitTensor, intersection, rows_of


def write_rows(
    folder: Path, tensors: Sequence[SplitTensor], place: Place, rows: Rows, whole: Rows
) -> list[WriteResult]:
    """Write this rank's file into the folder; `whole` is for one rank to write. Returns where everything is in it.

    What several ranks hold, the lowest of them writes. Raises whatever went wrong, such as `OSError`.
    """
    items = [_item(tensor, part) for part in place.first_of for tensor in tensors if part.rows(tensor)]
    items += [_item(_as_split(path, tensor), None) for path, tensor in whole.items()]
    writer = dcp.FileSystemWriter(folder, sync_files=True)
    with own_errors():
        writer.set_up_storage_writer(False)
        local = writer.prepare_local_plan(SavePlan(items))
        # Files are named by their plan's place among all ranks' plans.
        plans = writer.prepare_global_plan([*[SavePlan([])] * place.rank, local])
        return writer.write_data(plans[place.rank], _Given({**rows, **whole})).value()


def files_of(results: Sequence[WriteResult]) -> set[str]:
    """Names of the files in which the results are."""
    return {result.storage_data.relative_path for result in results}


def describe(results: Sequence[WriteResult]) -> list[dict[str, Any]]:
    """The results as a JSON document, for the rank that joins the files."""
    return [
        {
            "path": result.index.fqn,
            "offset": list(result.index.offset or ()),
            "size_bytes": result.size_in_bytes,
            "place": dataclasses.asdict(result.storage_data),
        }
        for result in results
    ]


def join_files(
    folder: Path,
    tensors: Sequence[SplitTensor],
    holdings: Holdings,
    whole: Rows,
    described: Sequence[Sequence[Mapping[str, Any]]],
    own: Sequence[WriteResult],
) -> None:
    """Make one checkpoint of what each rank has described; `own` are the results of this one."""
    parts = holdings.parts
    metadata: dict[str, Any] = {tensor.path: _metadata(tensor, parts) for tensor in tensors}
    metadata |= {path: _metadata(_as_split(path, tensor), None) for path, tensor in whole.items()}
    results = [[_result(item, own[0]) for item in items] for items in described]
    with own_errors():
        writer = dcp.FileSystemWriter(folder, sync_files=True)
        writer.set_up_storage_writer(True)
        writer.finish(Metadata(metadata), results)


def read_rows(folder: Path, tensors: Sequence[SplitTensor], place: Place, rows: Rows, whole: Rows) -> None:
    """Fill the rank's rows of the tensors, and the whole ones. Raises whatever went wrong, such as `OSError`."""
    places = {tensor.path: rows_of(place.parts, tensor).start for tensor in tensors}
    state = {**{tensor.path: rows[tensor.path].view(-1, *tensor.shape[1:]) for tensor in tensors}, **whole}
    with own_errors():
        dcp.load(state, storage_reader=dcp.FileSystemReader(folder), planner=_RowPlanner(places), no_dist=True)


class _Given(SavePlanner):
    """Hands out tensors that are planned for already."""

    def __init__(self, tensors: Rows) -> None:
        self._tensors = tensors

    def set_up_planner(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError

    def create_local_plan(self) -> SavePlan:
        raise NotImplementedError

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        raise NotImplementedError

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        raise NotImplementedError

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        tensor = self._tensors[write_item.index.fqn].detach()
        data = write_item.tensor_data
        assert data is not None
        return tensor if data.size else tensor.reshape(())


class _RowPlanner(LoadPlanner):
    """Reads into tensors that begin at a row of the stored ones."""

    def __init__(self, places: Mapping[str, int]) -> None:
        self._places = places

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, *_: Any, **__: Any
    ) -> None:
        self._targets: dict[str, torch.Tensor] = state_dict
        self._metadata = metadata

    def create_local_plan(self) -> LoadPlan:
        return LoadPlan([item for path in self._targets for item in self._reads(path)])

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        raise NotImplementedError

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        target = self._targets[read_item.dest_index.fqn].detach()
        if not read_item.lengths:
            return target.view(())
        for dimension, (start, length) in enumerate(zip(read_item.dest_offsets, read_item.lengths, strict=True)):
            target = target.narrow(dimension, start, length)
        return target

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """The tensor is a view of the target."""

    def _reads(self, path: str) -> Iterator[ReadItem]:
        assert self._metadata is not None
        stored = self._metadata.state_dict_metadata[path]
        assert isinstance(stored, TensorStorageMetadata)
        target, first = self._targets[path], self._places.get(path)
        for number, chunk in enumerate(stored.chunks):
            offsets, lengths, inner = list(chunk.offsets), list(chunk.sizes), [0] * len(chunk.sizes)
            if first is not None and chunk.sizes:
                held = range(chunk.offsets[0], chunk.offsets[0] + chunk.sizes[0])
                common = intersection(held, range(first, first + len(target)))
                offsets[0], lengths[0], inner[0] = common.start - first, len(common), common.start - held.start
            if 0 not in lengths and target.numel():
                yield ReadItem(
                    type=LoadItemType.TENSOR,
                    dest_index=MetadataIndex(path),
                    dest_offsets=torch.Size(offsets),
                    storage_index=MetadataIndex(path, chunk.offsets, number),
                    storage_offsets=torch.Size(inner),
                    lengths=torch.Size(lengths),
                )


def _as_split(path: str, tensor: torch.Tensor) -> SplitTensor:
    return SplitTensor(path, tuple(tensor.shape), tensor.dtype)


def _chunk(tensor: SplitTensor, part: Part | None) -> ChunkStorageMetadata:
    """The part's rows as DCP sees them; None is all of the tensor."""
    offsets, sizes = [0] * len(tensor.shape), list(tensor.shape)
    if part is not None and tensor.shape:
        rows = part.rows(tensor)
        offsets[0], sizes[0] = rows.start, len(rows)
    return ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))


def _item(tensor: SplitTensor, part: Part | None) -> WriteItem:
    chunk = _chunk(tensor, part)
    data = TensorWriteData(chunk, TensorProperties(dtype=tensor.dtype), torch.Size(tensor.shape))
    return WriteItem(MetadataIndex(tensor.path, chunk.offsets), WriteItemType.SHARD, tensor_data=data)


def _metadata(tensor: SplitTensor, parts: Sequence[Part] | None) -> TensorStorageMetadata:
    holders = [None] if parts is None else [part for part in parts if part.rows(tensor)]
    chunks = [_chunk(tensor, part) for part in holders]
    return TensorStorageMetadata(TensorProperties(dtype=tensor.dtype), torch.Size(tensor.shape), chunks)


def _result(item: Mapping[str, Any], like: WriteResult) -> WriteResult:
    # What a place is made of is DCP's own business, as long as it is plain values.
    place = dataclasses.replace(like.storage_data, **item["place"])
    return WriteResult(MetadataIndex(item["path"], item["offset"]), item["size_bytes"], place)
