"""Examples about moving data: channels of every kind, herds and segments that pass tiles on, copies, transposes."""

from __future__ import annotations

from typing import cast

import numpy as np
from xdsl.dialects import memref
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr

from npu_tools.air.dialect import HerdOp
from npu_tools.bench.references.case import EXACT, Build, Case, Trial, constant, units


def plus(amount: int) -> Build:
    """The input plus a constant."""

    def build(case: Case) -> Trial:
        a = case.integers(0, -1000, 1000)
        return case.trial({0: a}, {1: (a + amount, EXACT)})

    return build


def plus_global(case: Case) -> Trial:
    """The input plus the constant array the program holds."""
    a = case.integers(0, -1000, 1000)
    held = next(op for op in case.program.module.walk() if isinstance(op, memref.GlobalOp))
    values = cast("DenseIntOrFPElementsAttr", held.initial_value).get_values()
    return case.trial({0: a}, {1: (a + np.asarray(values, np.int64), EXACT)})


def copied(case: Case) -> Trial:
    """The input as it is."""
    a = case.normal(0) if case.arguments[0].dtype.kind not in "iu" else case.whole(0)
    return case.trial({0: a}, {1: (a, EXACT)})


def transposed(case: Case) -> Trial:
    """Rows to columns; flat arguments hold 64 columns' worth of rows as the example's default does."""
    shape = case.shape(0) if len(case.shape(0)) == 2 else _flat_matrix(case)
    a = case.normal(0, 1, shape) if case.arguments[0].dtype.kind not in "iu" else case.whole(0).reshape(shape)
    return case.trial({0: a}, {1: (a.T, EXACT)})


def _flat_matrix(case: Case) -> tuple[int, int]:
    """[rows, columns] of a flat argument, from a window that walks it by columns: sizes (..., columns, rows)."""
    size = case.shape(0)[0]
    for op in case.program.module.walk():
        window = getattr(op, "src_window", None)
        if window is None:
            continue
        sizes = [each for each in window.sizes if isinstance(each, int)]
        if len(sizes) >= 2 and sizes[-1] * sizes[-2] == size and isinstance(window.strides[-1], int):
            return (sizes[-1], sizes[-2]) if window.strides[-1] > 1 else (sizes[-2], sizes[-1])
    return (64, size // 64)


def broadcast_counted(case: Case) -> Trial:
    """One input; output i is the input plus i."""
    a = case.integers(0, -1000, 1000)
    return case.trial({0: a}, {i: (a + i, EXACT) for i in range(1, len(case.arguments))})


def broadcast_across_herds(case: Case) -> Trial:
    """Each consumer holds the input plus one."""
    a = case.normal(0, 2)
    copies = case.shape(1)[0] // case.shape(0)[0]
    return case.trial({0: a}, {1: (np.tile(a + 1, copies), units(1, 0.0, "one rounding to bf16"))})


def selective_capture(case: Case) -> Trial:
    """All cores see all tiles; core i keeps tile i and adds i."""
    cores = _cores(case)
    a = case.integers(0, -1000, 1000)
    return case.trial({0: a}, {1: (a.reshape(cores, -1) + np.arange(cores)[:, None], EXACT)})


def _cores(case: Case) -> int:
    """Tiles of the largest herd."""
    counts = [1]
    for op in case.program.module.walk():
        if isinstance(op, HerdOp):
            sizes = [constant(size) for size in op.sizes]
            counts.append(int(np.prod([size for size in sizes if size is not None])))
    return max(counts)


def cascade_columns(case: Case) -> Trial:
    """Inputs [segment, row, column, tile]; each column of a segment is summed by cascade."""
    total, kept = case.shape(0)[0], case.shape(1)[0]
    tile = next(shape[0] for shape in _l1_shapes(case))
    segments = total // (tile * _cores(case))
    a = case.integers(0, -1000, 1000)
    sums = a.reshape(segments, total // kept, kept // tile // segments, tile).sum(axis=1)
    return case.trial({0: a}, {1: (sums, EXACT)})


def _l1_shapes(case: Case) -> list[tuple[int, ...]]:
    return [tuple(op.memref.type.get_shape()) for op in case.program.module.walk() if isinstance(op, memref.AllocOp)]


def cascade_counted(case: Case) -> Trial:
    """Every core of the chain adds one."""
    a = case.integers(0, -1000, 1000)
    return case.trial({0: a}, {1: (a + _cores(case), EXACT)})


def two_herds(case: Case) -> Trial:
    """a0 + b0 and a1 * b1, small whole numbers that bf16 holds."""
    values = [case.integers(i, -8, 9).astype(np.float64) for i in range(4)]
    return case.trial(dict(enumerate(values)), {4: (values[0] + values[1], EXACT), 5: (values[2] * values[3], EXACT)})


def squared_plus_one(case: Case) -> Trial:
    """One herd squares, the next adds one."""
    a = case.integers(0, -1000, 1000)
    return case.trial({0: a}, {1: (a * a + 1, EXACT)})


def passed_round(case: Case) -> Trial:
    """Workers hand their tile, with their number added, to the next: along the row, then to the row below."""
    a = case.integers(0, -1000, 1000)
    rows, columns = next(shape for shape in _l1_shapes(case) if len(shape) == 2)
    high, wide = a.shape[0] // rows, a.shape[1] // columns
    tiles = a.reshape(high, rows, wide, columns).transpose(0, 2, 1, 3)
    # What worker n writes to its own place is the tile of worker n - 1, with that worker's number added.
    numbered = tiles.reshape(high * wide, rows, columns) + np.arange(high * wide, dtype=np.int64)[:, None, None]
    expected = np.roll(numbered, 1, axis=0).reshape(high, wide, rows, columns)
    return case.trial({0: a}, {1: (expected.transpose(0, 2, 1, 3).reshape(a.shape), EXACT)})


def numbered_tiles(case: Case) -> Trial:
    """Each tile plus its number, row by row."""
    a = case.integers(0, -1000, 1000)
    rows, columns = next(shape for shape in _l1_shapes(case) if len(shape) == 2)
    count = (a.shape[0] // rows) * (a.shape[1] // columns)
    numbers = np.arange(count, dtype=np.int64).reshape(a.shape[0] // rows, -1)
    return case.trial({0: a}, {1: (a + np.repeat(np.repeat(numbers, rows, axis=0), columns, axis=1), EXACT)})


def two_segments(case: Case) -> Trial:
    """The first plus 3, the second plus 10."""
    a, b = case.integers(0, -1000, 1000), case.integers(1, -1000, 1000)
    return case.trial({0: a, 1: b}, {2: (a + 3, EXACT), 3: (b + 10, EXACT)})


def first_tile(case: Case) -> Trial:
    """The first tile is copied; the rest of the output stays as the caller left it."""
    a, before = case.integers(0, -1000, 1000), case.integers(1, -1000, 1000)
    rows, columns = next(shape for shape in _l1_shapes(case) if len(shape) == 2)
    after = np.array(before)
    after[:rows, :columns] = a[:rows, :columns]
    return case.trial({0: a, 1: before}, {1: (after, EXACT)})


def branch(case: Case) -> Trial:
    """The flag handed to the herd decides: plus 100, else times 100."""
    a = case.integers(0, -1000, 1000)
    flag = case.herd_indices()[-1]
    return case.trial({0: a}, {1: (a + 100 if flag else a * 100, EXACT)})


REFERENCES: tuple[tuple[str, Build], ...] = (
    ("channel_examples__broadcast__cross_herd*", broadcast_across_herds),
    ("channel_examples__broadcast__*", broadcast_counted),
    ("channel_examples__broadcast_selective_capture*", selective_capture),
    ("channel_examples__channel_3d_segment_unroll*", cascade_columns),
    ("channel_examples__channel_size*", copied),
    ("channel_examples__dual_herd_packet_switch*", two_herds),
    ("channel_examples__herd_to_herd*", squared_plus_one),
    ("channel_examples__hierarchical*", plus(1)),
    ("channel_examples__mmio*", plus_global),
    ("@cross_herd_broadcast", broadcast_across_herds),
    ("@broadcast_selective_capture", selective_capture),
    ("@channel_3d_segment_unroll", cascade_columns),
    ("@dual_herd_elemwise", two_herds),
    ("@mmio_add", plus_global),
    ("channel_examples__worker_to_self*", copied),
    ("channel_examples__worker_to_worker*", passed_round),
    ("cascade_reduction*", cascade_counted),
    ("@cascade_reduce", cascade_counted),
    ("conditional_branching*", branch),
    ("@conditional_branch", branch),
    ("data_transfer_transpose*", transposed),
    ("@transpose", transposed),
    ("matrix_scalar_add*", numbered_tiles),
    ("multi_segment*", two_segments),
    ("passthrough*", copied),
    ("segment_alloc*", first_tile),
    ("segment_unroll*", plus(10)),
    ("@segment_unroll_test", plus(10)),
)
