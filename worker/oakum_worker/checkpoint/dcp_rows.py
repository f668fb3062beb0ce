"""One checkpoint in DCP's format, written by many ranks and read by any number, each its own rows.

DCP's own `save` plans in collectives. Here every rank knows from the layout what the other ranks' files contain,
except for byte positions, which each rank writes down for the rank that joins the files. Therefore no rank waits
in a collective for a rank that may be gone, and the training's process group is not used.

This module is imported late, like `dcp_files`.
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
from oakum_worker.checkpoint.dcp_index import IndexedReader
from oakum_worker.parallel.blocks import Block, Box, intersection
from oakum_worker.parallel.holdings import Holdings, Part, Place, Rows, SplitTensor, block_of


def write_rows(
    folder: Path, tensors: Sequence[SplitTensor], place: Place, rows: Rows, whole: Rows
) -> list[WriteResult]:
    """Write this rank's file into the checkpoint's folder: its `rows`, as far as no lower rank holds the same
    part, and the tensors in `whole`, which only one rank is given. Returns where each part is in the file. Raises
    the error that made it fail, such as `OSError`, not DCP's wrapper of it."""
    items, boxes = [], {}
    for part in place.first_of:
        for tensor in tensors:
            for box in part.block(tensor).boxes():
                items.append(_item(tensor, box))
                boxes[items[-1].index] = box
    items += [_item(_as_split(path, tensor), None) for path, tensor in whole.items()]
    writer = dcp.FileSystemWriter(folder, sync_files=True)
    with own_errors():
        writer.set_up_storage_writer(False)
        local = writer.prepare_local_plan(SavePlan(items))
        # Files are named by their plan's place among all ranks' plans.
        plans = writer.prepare_global_plan([*[SavePlan([])] * place.rank, local])
        return writer.write_data(plans[place.rank], _Given({**rows, **whole}, boxes)).value()


def files_of(results: Sequence[WriteResult]) -> set[str]:
    """Names of the files in which the results are."""
    return {result.storage_data.relative_path for result in results}


def describe(results: Sequence[WriteResult]) -> list[dict[str, Any]]:
    """The results of `write_rows` as a JSON document, for the rank that joins the files."""
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
    """Write the metadata that make one checkpoint of the files that all ranks wrote into `folder`. `described` has
    each rank's result of `describe`, `own` is this rank's result of `write_rows`. Raises the error that made it
    fail, such as `OSError`."""
    parts = holdings.parts
    metadata: dict[str, Any] = {tensor.path: _metadata(tensor, parts) for tensor in tensors}
    metadata |= {path: _metadata(_as_split(path, tensor), None) for path, tensor in whole.items()}
    results = [[_result(item, own[0]) for item in items] for items in described]
    with own_errors():
        writer = dcp.FileSystemWriter(folder, sync_files=True)
        writer.set_up_storage_writer(True)
        writer.finish(Metadata(metadata), results)


def read_rows(folder: Path, tensors: Sequence[SplitTensor], place: Place, rows: Rows, whole: Rows) -> None:
    """Read a checkpoint's values into this rank's `rows` and into the `whole` tensors, whose memory is
    overwritten. Raises the error that made it fail, such as `OSError`, not DCP's wrapper of it."""
    blocks = {tensor.path: block_of(place.parts, tensor) for tensor in tensors}
    state = {**{path: rows[path].view(block.shape) for path, block in blocks.items()}, **whole}
    with own_errors():
        dcp.load(state, storage_reader=IndexedReader(folder), planner=_BlockPlanner(blocks), no_dist=True)


class _Given(SavePlanner):
    """DCP's planner for writing a plan that exists already: it finds the values of the plan's items in given
    tensors."""

    def __init__(self, tensors: Rows, boxes: Mapping[MetadataIndex, Box]) -> None:
        """`tensors`: path -> this rank's block of the tensor. `boxes`: item of the plan -> the box of its tensor
        that is written, for items that are not a whole tensor."""
        self._tensors = tensors
        self._boxes = boxes

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
        if not data.size:
            return tensor.reshape(())
        box = self._boxes.get(write_item.index)
        return tensor if box is None else tensor[box.memory].contiguous()


class _BlockPlanner(LoadPlanner):
    """DCP's planner for reading blocks of stored tensors: each target tensor is one block of the stored one."""

    def __init__(self, blocks: Mapping[str, Block]) -> None:
        """`blocks`: path of a tensor -> the block of it that is read. Tensors that are not in it are read
        whole."""
        self._blocks = blocks

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
        """Do nothing: `tensor` is a view of the target, which is filled already."""

    def _reads(self, path: str) -> Iterator[ReadItem]:
        assert self._metadata is not None
        stored = self._metadata.state_dict_metadata[path]
        assert isinstance(stored, TensorStorageMetadata)
        target, block = self._targets[path], self._blocks.get(path)
        boxes = list(_whole_of(target).boxes() if block is None else block.boxes())
        for number, chunk in enumerate(stored.chunks):
            for box in boxes if target.numel() else ():
                # A stored tensor without dimensions has no sizes; its box is that of one row.
                dimensions = list(zip(chunk.offsets, chunk.sizes, box.offsets, box.sizes, strict=False))
                common = [intersection(range(o, o + s), range(to, to + n)) for o, s, to, n in dimensions]
                if all(common):
                    yield ReadItem(
                        type=LoadItemType.TENSOR,
                        dest_index=MetadataIndex(path),
                        dest_offsets=torch.Size(
                            place.start + both.start - first
                            for place, both, first in zip(box.memory, common, box.offsets, strict=False)
                        ),
                        storage_index=MetadataIndex(path, chunk.offsets, number),
                        storage_offsets=torch.Size(
                            both.start - first for both, first in zip(common, chunk.offsets, strict=True)
                        ),
                        lengths=torch.Size(map(len, common)),
                    )


def _whole_of(tensor: torch.Tensor) -> Block:
    return Block.of([range(size) for size in tensor.shape])


def _as_split(path: str, tensor: torch.Tensor) -> SplitTensor:
    return SplitTensor(path, tuple(tensor.shape), tensor.dtype)


def _chunk(tensor: SplitTensor, box: Box | None) -> ChunkStorageMetadata:
    """DCP's description (offsets and sizes) of a box of the tensor; a `box` of None is the whole tensor."""
    if box is None or not tensor.shape:
        return ChunkStorageMetadata(torch.Size([0] * len(tensor.shape)), torch.Size(tensor.shape))
    return ChunkStorageMetadata(torch.Size(box.offsets), torch.Size(box.sizes))


def _item(tensor: SplitTensor, box: Box | None) -> WriteItem:
    chunk = _chunk(tensor, box)
    data = TensorWriteData(chunk, TensorProperties(dtype=tensor.dtype), torch.Size(tensor.shape))
    return WriteItem(MetadataIndex(tensor.path, chunk.offsets), WriteItemType.SHARD, tensor_data=data)


def _metadata(tensor: SplitTensor, parts: Sequence[Part] | None) -> TensorStorageMetadata:
    boxes = [None] if parts is None else [box for part in parts for box in part.block(tensor).boxes()]
    chunks = [_chunk(tensor, box) for box in boxes]
    return TensorStorageMetadata(TensorProperties(dtype=tensor.dtype), torch.Size(tensor.shape), chunks)


def _result(item: Mapping[str, Any], like: WriteResult) -> WriteResult:
    # The fields of `storage_data` are DCP's own; all that is needed here is that they are plain values.
    place = dataclasses.replace(like.storage_data, **item["place"])
    return WriteResult(MetadataIndex(item["path"], item["offset"]), item["size_bytes"], place)
