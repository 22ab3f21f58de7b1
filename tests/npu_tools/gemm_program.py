"""The bf16 GEMM program in the structure of mlir-air's matrix_multiplication builders, for any size and tiling.

Launch over blocks of C, a segment that brings A and B into L2 along K, a herd that brings blocked tiles into L1 and
calls the kernel, and a herd that narrows C and drains it. Written anew from that structure.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tiling:
    """Herd columns and rows, the tile of C of one core, the depth brought to L2 and to L1 at once."""

    columns: int = 8
    rows: int = 4
    m: int = 64
    n: int = 128
    k_l2: int = 256
    k_l1: int = 32


def gemm_text(m: int, k: int, n: int, tiling: Tiling | None = None) -> str:
    """C [m, n] = A [m, k] B [k, n], bf16 in and out, float32 accumulators."""
    t = tiling or Tiling()
    high, wide = t.columns * t.m, t.rows * t.n
    assert m % high == n % wide == k % t.k_l2 == t.k_l2 % t.k_l1 == 0, "sizes must be multiples of the tiling"
    a, b, c = f"memref<{m}x{k}xbf16>", f"memref<{k}x{n}xbf16>", f"memref<{m}x{n}xbf16>"
    a2 = f"memref<{t.columns}x1x{t.m}x{t.k_l2}xbf16, 1>"
    b2 = f"memref<1x{t.rows}x{t.k_l2}x{t.n}xbf16, 1>"
    c2 = f"memref<{t.columns}x{t.rows}x{t.m}x{t.n}xbf16, 1>"
    mb, nb, kb = t.m // 8, t.n // 8, t.k_l1 // 8
    a1, b1 = f"memref<1x1x{kb}x{mb}x8x8xbf16, 2>", f"memref<1x1x{nb}x{kb}x8x8xbf16, 2>"
    c1 = f"memref<1x1x{nb}x{mb}x8x8xbf16, 2>"
    acc = f"memref<{t.columns}x{t.rows}x{nb}x{mb}x8x8xf32, 2>"
    tile = t.m * t.n
    one = f"memref<1x1x{nb}x{mb}x8x8xf32, strided<[{t.rows * tile}, {tile}, {mb * 64}, 64, 8, 1], offset: ?>, 2>"
    view = (
        f"%tile = memref.subview %acc1[%x, %y, 0, 0, 0, 0] [1, 1, {nb}, {mb}, 8, 8] [1, 1, 1, 1, 1, 1] : {acc} to {one}"
    )
    herd = "(%x, %y) in (%sx=%cols, %sy=%rows)"
    return f"""module {{
  func.func private @zero_f32_mn({one}) attributes {{link_with = "mm.o"}}
  func.func private @op_has_no_registered_library_name({a1}, {b1}, {one}) attributes {{link_with = "mm.o"}}
  func.func private @f32_to_bf16_mn({one}, {c1}) attributes {{link_with = "mm.o"}}
  func.func @matmul_bf16(%a: {a}, %b: {b}, %c: {c}) {{
    %lx = arith.constant {m // high} : index
    %ly = arith.constant {n // wide} : index
    air.launch (%i, %j) in (%si=%lx, %sj=%ly) args(%la=%a, %lb=%b, %lc=%c) : {a}, {b}, {c} {{
      air.segment @seg args(%bi=%i, %bj=%j, %sa=%la, %sb=%lb, %sc=%lc) : index, index, {a}, {b}, {c} {{
        %c0 = arith.constant 0 : index
        %one = arith.constant 1 : index
        %cols = arith.constant {t.columns} : index
        %rows = arith.constant {t.rows} : index
        %high = arith.constant {high} : index
        %wide = arith.constant {wide} : index
        %depth = arith.constant {t.k_l2} : index
        %steps = arith.constant {k // t.k_l2} : index
        %row = arith.muli %bi, %high : index
        %col = arith.muli %bj, %wide : index
        %a2 = memref.alloc() : {a2}
        %b2 = memref.alloc() : {b2}
        %c2 = memref.alloc() : {c2}
        %acc = memref.alloc() : {acc}
        air.herd @herd_0 tile {herd} args(%acc1=%acc) : {acc} attributes {{link_with = "mm.o"}} {{
          {view}
          func.call @zero_f32_mn(%tile) : ({one}) -> ()
        }}
        scf.for %step = %c0 to %steps step %one {{
          %at = arith.muli %step, %depth : index
          {dma("%a2", "%sa", [("%row", "%at"), (t.columns, 1, t.m, t.k_l2), (t.m * k, t.k_l2, k, 1)], a2, a)}
          {dma("%b2", "%sb", [("%at", "%col"), (1, t.rows, t.k_l2, t.n), (t.k_l2 * n, t.n, n, 1)], b2, b)}
          air.herd @herd_0 tile {herd} args(%acc1=%acc, %ha=%a2, %hb=%b2) : {acc}, {a2}, {b2} attributes {{link_with = "mm.o"}} {{
            %h0 = arith.constant 0 : index
            %h1 = arith.constant 1 : index
            %hk = arith.constant {t.k_l1} : index
            %hn = arith.constant {t.k_l2 // t.k_l1} : index
            %a1 = memref.alloc() : {a1}
            %b1 = memref.alloc() : {b1}
            scf.for %kk = %h0 to %hn step %h1 {{
              %ko = arith.muli %kk, %hk : index
              {dma("%a1", "%ha", [("%x", 0, 0, 0, 0, "%ko"), (1, 1, kb, mb, 8, 8), (t.m * t.k_l2, t.m * t.k_l2, 8, 8 * t.k_l2, t.k_l2, 1)], a1, a2)}
              {dma("%b1", "%hb", [(0, "%y", 0, 0, "%ko", 0), (1, 1, nb, kb, 8, 8), (t.rows * t.k_l2 * t.n, t.k_l2 * t.n, 8, 8 * t.n, t.n, 1)], b1, b2)}
              {view}
              func.call @op_has_no_registered_library_name(%a1, %b1, %tile) : ({a1}, {b1}, {one}) -> ()
            }}
            memref.dealloc %a1 : {a1}
            memref.dealloc %b1 : {b1}
          }}
        }}
        air.herd @herd_0 tile {herd} args(%acc1=%acc, %hc=%c2) : {acc}, {c2} attributes {{link_with = "mm.o"}} {{
          {view}
          %c1 = memref.alloc() : {c1}
          func.call @f32_to_bf16_mn(%tile, %c1) : ({one}, {c1}) -> ()
          "air.dma_memcpy_nd"(%hc, %x, %y, %c1) {{operandSegmentSizes = array<i32: 0, 1, 2, 0, 0, 1, 0, 0, 0>, static_dst_offsets = array<i64: {DYNAMIC}, {DYNAMIC}, 0, 0>, static_dst_sizes = array<i64: 1, 1, {t.m}, {t.n}>, static_dst_strides = array<i64: {t.rows * tile}, {tile}, {t.n}, 1>, static_src_offsets = array<i64: 0, 0, 0, 0, 0, 0>, static_src_sizes = array<i64: 1, 1, {mb}, 8, {nb}, 8>, static_src_strides = array<i64: {tile}, {tile}, 64, 8, {64 * mb}, 1>}} : ({c2}, index, index, {c1}) -> ()
          memref.dealloc %c1 : {c1}
        }}
        "air.dma_memcpy_nd"(%sc, %row, %col, %c2) {{operandSegmentSizes = array<i32: 0, 1, 2, 0, 0, 1, 0, 0, 0>, static_dst_offsets = array<i64: {DYNAMIC}, {DYNAMIC}>, static_dst_sizes = array<i64: {high}, {wide}>, static_dst_strides = array<i64: {n}, 1>, static_src_offsets = array<i64: 0, 0, 0, 0>, static_src_sizes = array<i64: {t.columns}, {t.m}, {t.rows}, {t.n}>, static_src_strides = array<i64: {t.rows * tile}, {t.n}, {tile}, 1>}} : ({c}, index, index, {c2}) -> ()
        memref.dealloc %a2 : {a2}
        memref.dealloc %b2 : {b2}
        memref.dealloc %c2 : {c2}
        memref.dealloc %acc : {acc}
      }}
    }}
    return
  }}
}}
"""


DYNAMIC = -(1 << 63)


def dma(target: str, source: str, window: list[tuple[int | str, ...]], target_type: str, source_type: str) -> str:
    """A DMA of a window on the source into the whole target, in generic form."""
    offsets, sizes, strides = window
    values = [entry for entry in offsets if isinstance(entry, str)]
    static = ", ".join(str(DYNAMIC) if isinstance(entry, str) else str(entry) for entry in offsets)
    operands = "".join(f", {value}" for value in values)
    kinds = ", index" * len(values)
    return (
        f'"air.dma_memcpy_nd"({target}, {source}{operands}) {{operandSegmentSizes = '
        f"array<i32: 0, 1, 0, 0, 0, 1, {len(values)}, 0, 0>, static_dst_offsets = array<i64>, "
        f"static_dst_sizes = array<i64>, static_dst_strides = array<i64>, static_src_offsets = array<i64: {static}>, "
        f"static_src_sizes = array<i64: {', '.join(map(str, sizes))}>, "
        f"static_src_strides = array<i64: {', '.join(map(str, strides))}>}} : "
        f"({target_type}, {source_type}{kinds}) -> ()"
    )
