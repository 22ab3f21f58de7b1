"""Matrix and vector products in every type but the packed ones."""

from __future__ import annotations

import numpy as np
from xdsl.dialects import memref
from xdsl.dialects.builtin import Float32Type

from npu_tools.bench.references.case import BF16, EXACT, Build, Case, Float, Trial, example
from npu_tools.gate import Tolerance, tolerance_for


def product(case: Case) -> Trial:
    """A [M, K] @ B [K, N]; integers wrap at the output's width."""
    if case.arguments[0].dtype.kind in "iu":
        a, b = case.integers(0, -100, 100), case.integers(1, -100, 100)
        # Whole numbers this small are exact in float64, whose product BLAS knows.
        exact = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)
        return case.trial({0: a, 1: b}, {2: (exact, EXACT)})
    a, b = _scaled(case)
    return case.trial({0: a, 1: b}, {2: (a @ b, _gemm_tolerance(case))})


def product_then_cast(case: Case) -> Trial:
    """The same with an f32 scratch argument between the product and its cast."""
    a, b = _scaled(case)
    return case.trial({0: a, 1: b, 2: np.zeros(case.shape(2))}, {3: (a @ b, tolerance_for("gemm"))})


def _scaled(case: Case) -> tuple[Float, Float]:
    """Normal over the root of K, as upstream's inputs, and no larger in sum than at K = 2048.

    Upstream sized the absolute tolerance on outputs of K = 2048 to 8192, which spread like 1 / sqrt(K).
    """
    depth = case.shape(0)[1]
    return case.normal(0, max(depth, 2048) ** -0.5), case.normal(1, depth**-0.5)


def _gemm_tolerance(case: Case) -> Tolerance:
    """Upstream's tiers: f32 out; on AIE2 without BFP16; bf16 accumulators, f32 accumulators in L1."""
    if case.arguments[2].dtype != BF16:
        return tolerance_for("gemm", tier="f32")
    if case.name.startswith("matrix_multiplication__bf16__"):
        # Printed for AIE2 by default, whose own multiply-accumulate upstream measured as coarser.
        return example("matrix_multiplication/bf16/run.py", 5e-2, 1e-2)
    return tolerance_for("gemm", tier="high" if _keeps_f32(case) else "low")


def _keeps_f32(case: Case) -> bool:
    kinds = (op.memref.type for op in case.program.module.walk() if isinstance(op, memref.AllocOp))
    return any(isinstance(kind.element_type, Float32Type) for kind in kinds)


def matvec(case: Case) -> Trial:
    """A [M, K] @ b [K]."""
    a, b = _factors(case)
    return case.trial({0: a, 1: b}, {2: (a @ b, tolerance_for("gemv"))})


def matvec_add(case: Case) -> Trial:
    """A @ b + r."""
    a, b = _factors(case)
    r = case.normal(2, 4)
    return case.trial({0: a, 1: b, 2: r}, {3: (a @ b + r, tolerance_for("gemv"))})


def _factors(case: Case) -> tuple[Float, Float]:
    return case.normal(0, 4), case.normal(1, 4)


def cascaded(build: Build) -> Build:
    """The same over a chain of cores: partial sums pass from core to core as f32."""

    def chained(case: Case) -> Trial:
        trial = build(case)
        tolerance = example("matrix_vector_multiplication/bf16_cascade/matvec_cascade.py", 4e-2, 1e-3)
        return Trial(trial.inputs, {name: type(one)(one.values, tolerance) for name, one in trial.expected.items()})

    return chained


def two_tiles_add(case: Case) -> Trial:
    """A @ b + r, one row's halves on two cores, partial sums as bf16."""
    a, b, r = case.normal(0, 0.02), case.normal(1), case.normal(2)
    # Upstream allows atol 2; two bf16 partial sums and their sum round thrice.
    tolerance = example("matrix_vector_multiplication/bf16_cascade/matvec_2tile_add.py", 5e-2, 5e-2)
    return case.trial({0: a, 1: b, 2: r}, {3: (a @ b + r, tolerance)})


def vecmat(case: Case) -> Trial:
    """a [K] @ B [K, N], with scales where there are five arguments."""
    if len(case.arguments) == 5:
        return vecmat_quantised(case)
    if case.arguments[0].dtype.kind in "iu":
        a, b = case.whole(0), case.whole(1)
        return case.trial({0: a, 1: b}, {2: (a @ b, EXACT)})
    # Rising, as upstream's inputs are: the kernel keeps its sum in bf16 every 8 rows, rounding down each time, and only
    # rising terms keep that within upstream's tolerance.
    rows, columns = case.shape(1)
    a = case.rounded(0, (np.arange(rows) + case.rng.random(rows)) / rows)
    b = case.rounded(1, (np.arange(rows)[:, None] + case.rng.random((rows, columns))) / rows)
    tolerance = example("vector_matrix_multiplication/bf16/single_core/single_core.py", 4e-2)
    return case.trial({0: a, 1: b}, {2: (a @ b, tolerance)})


def vecmat_quantised(case: Case) -> Trial:
    """a [K] @ B [K, N] in int8 with one f32 scale a block of K, and one a block and column."""
    blocks = case.shape(1)[0]
    a, b = case.whole(0), case.whole(2)
    a_scale, b_scale = case.normal(1), case.uniform(3, 0, 1)
    sums = np.einsum("gk,gkn->gn", a.reshape(blocks, -1), b.reshape(blocks, -1, case.shape(2)[1]))
    scaled = sums * a_scale[:, None] * b_scale
    # f32 sums of terms that cancel.
    atol = 2.0**-20 * float(np.abs(scaled).sum(axis=0).max())
    tolerance = Tolerance(None, "given", "f32", 1e-5, atol, None, "f32 sums of the blocks")
    return case.trial({0: a, 1: a_scale, 2: b, 3: b_scale}, {4: (scaled.sum(axis=0), tolerance)})


REFERENCES: tuple[tuple[str, Build], ...] = (
    ("matrix_multiplication__*__run", product),
    ("@matmul_bf16", product),
    ("@matmul_i*", product),
    ("@gemm_cast_bf16", product_then_cast),
    ("matrix_vector_multiplication__bf16__matvec*", matvec),
    ("@matvec_bf16", matvec),
    ("matrix_vector_multiplication__bf16_cascade__matvec_cascade", cascaded(matvec)),
    ("@matvec_cascade_bf16", cascaded(matvec)),
    ("matrix_vector_multiplication__bf16_cascade__matvec_cascade_add", cascaded(matvec_add)),
    ("@matvec_cascade_add_bf16", cascaded(matvec_add)),
    ("matrix_vector_multiplication__bf16_cascade__matvec_2tile_add", two_tiles_add),
    ("@matvec_2tile_add", two_tiles_add),
    ("vector_matrix_multiplication__*", vecmat),
    ("@vecmat_*", vecmat),
)
