"""AIR programs as text, at any size: a GEMM and a GEMV of the same structure as upstream's builders.

    gemm(2048, 2048, 2048)            # launches of an 8 x 4 herd, L2 tiles of 256 along K, f32 accumulators in L1
    gemv(8192, 2048)                  # eight cores side by side, a launch for every 64 rows

All bf16. External kernels are those of upstream's mm.cc and mv.cc.
"""

from __future__ import annotations

from dataclasses import dataclass

from npu_tools.errors import UnusableInput

_L1, _L2 = "2 : i32", "1 : i32"


def _divides(what: str, size: int, step: int) -> None:
    if size <= 0 or size % step:
        raise UnusableInput(f"{what} is {size}; give a multiple of {step}")


@dataclass(frozen=True, slots=True)
class GemmTiles:
    """A core's tile [m, n], K per L2 tile and per L1 tile, and the herd."""

    m: int = 64
    k_l2: int = 256
    k_l1: int = 32
    n: int = 128
    herd_m: int = 8
    herd_n: int = 4


def gemm(m: int, k: int, n: int, tiles: GemmTiles | None = None) -> str:
    """C [m, n] = A [m, k] @ B [k, n], f32 accumulators held over all of K.

    Raises:
        UnusableInput: a size is no multiple of what one launch covers.
    """
    t = tiles or GemmTiles()
    _divides("m", m, t.m * t.herd_m)
    _divides("n", n, t.n * t.herd_n)
    _divides("k", k, t.k_l2)
    _divides("k_l2", t.k_l2, t.k_l1)
    rows, columns = t.m * t.herd_m, t.n * t.herd_n
    per_core = t.m * t.n
    a2 = f"memref<{t.herd_m}x1x{t.m}x{t.k_l2}xbf16, {_L2}>"
    b2 = f"memref<1x{t.herd_n}x{t.k_l2}x{t.n}xbf16, {_L2}>"
    c2 = f"memref<{t.herd_m}x{t.herd_n}x{t.m}x{t.n}xbf16, {_L2}>"
    blocks = f"{t.n // 8}x{t.m // 8}x8x8"
    acc = f"memref<{t.herd_m}x{t.herd_n}x{blocks}xf32, {_L1}>"
    strides = f"[{t.herd_n * per_core}, {per_core}, {t.m * 8}, 64, 8, 1]"
    mine = f"memref<1x1x{blocks}xf32, strided<{strides}, offset: ?>, {_L1}>"
    out = f"memref<1x1x{blocks}xbf16, {_L1}>"
    a1 = f"memref<1x1x{t.k_l1 // 8}x{t.m // 8}x8x8xbf16, {_L1}>"
    b1 = f"memref<1x1x{t.n // 8}x{t.k_l1 // 8}x8x8xbf16, {_L1}>"
    a3, b3, c3 = f"memref<{m}x{k}xbf16>", f"memref<{k}x{n}xbf16>", f"memref<{m}x{n}xbf16>"
    sub = (
        f"memref.subview %acc[%tx, %ty, 0, 0, 0, 0] [1, 1, {t.n // 8}, {t.m // 8}, 8, 8] [1, 1, 1, 1, 1, 1] : "
        f"{acc} to {mine}"
    )
    a_window = f"[1, 1, {t.k_l1 // 8}, {t.m // 8}, 8, 8] [{t.m * t.k_l2}, {t.m * t.k_l2}, 8, {8 * t.k_l2}, {t.k_l2}, 1]"
    b_window = (
        f"[1, 1, {t.n // 8}, {t.k_l1 // 8}, 8, 8] [{t.herd_n * t.k_l2 * t.n}, {t.k_l2 * t.n}, 8, {8 * t.n}, {t.n}, 1]"
    )
    return f"""#rows = affine_map<()[s0] -> (s0 * {rows})>
#columns = affine_map<()[s0] -> (s0 * {columns})>
#outer = affine_map<()[s0] -> (s0 * {t.k_l2})>
#inner = affine_map<()[s0] -> (s0 * {t.k_l1})>
module {{
  func.func private @zero_f32_mn({mine}) attributes {{link_with = "mm.o", llvm.emit_c_interface}}
  func.func private @op_has_no_registered_library_name({a1}, {b1}, {mine}) attributes {{link_with = "mm.o", llvm.emit_c_interface}}
  func.func private @f32_to_bf16_mn({mine}, {out}) attributes {{link_with = "mm.o", llvm.emit_c_interface}}
  func.func @matmul_bf16(%a: {a3}, %b: {b3}, %c: {c3}) {{
    %lm = arith.constant {m // rows} : index
    %ln = arith.constant {n // columns} : index
    air.launch (%i, %j) in (%si=%lm, %sj=%ln) args(%la=%a, %lb=%b, %lc=%c) : {a3}, {b3}, {c3} {{
      air.segment @matmul_seg args(%x=%i, %y=%j, %sa=%la, %sb=%lb, %sc=%lc) : index, index, {a3}, {b3}, {c3} {{
        %c0 = arith.constant 0 : index
        %c1 = arith.constant 1 : index
        %hm = arith.constant {t.herd_m} : index
        %hn = arith.constant {t.herd_n} : index
        %trips = arith.constant {k // t.k_l2} : index
        %a2 = memref.alloc() : {a2}
        %b2 = memref.alloc() : {b2}
        %c2 = memref.alloc() : {c2}
        %acc2 = memref.alloc() : {acc}
        %row = affine.apply #rows()[%x]
        %column = affine.apply #columns()[%y]
        air.herd @clear tile (%tx, %ty) in (%w=%hm, %h=%hn) args(%acc=%acc2) : {acc} attributes {{link_with = "mm.o"}} {{
          %s = {sub}
          func.call @zero_f32_mn(%s) : ({mine}) -> ()
        }}
        scf.for %o = %c0 to %trips step %c1 {{
          %k = affine.apply #outer()[%o]
          air.dma_memcpy_nd (%a2[] [] [], %sa[0, 0, %row, %k] [{t.herd_m}, 1, {t.m}, {t.k_l2}] [{t.m * k}, {t.k_l2}, {k}, 1]) : ({a2}, {a3})
          air.dma_memcpy_nd (%b2[] [] [], %sb[0, 0, %k, %column] [1, {t.herd_n}, {t.k_l2}, {t.n}] [{t.k_l2 * n}, {t.n}, {n}, 1]) : ({b2}, {b3})
          air.herd @multiply tile (%tx, %ty) in (%w=%hm, %h=%hn) args(%acc=%acc2, %ha=%a2, %hb=%b2) : {acc}, {a2}, {b2} attributes {{link_with = "mm.o"}} {{
            %h0 = arith.constant 0 : index
            %h1 = arith.constant 1 : index
            %steps = arith.constant {t.k_l2 // t.k_l1} : index
            %a1 = memref.alloc() : {a1}
            %b1 = memref.alloc() : {b1}
            scf.for %p = %h0 to %steps step %h1 {{
              %kk = affine.apply #inner()[%p]
              air.dma_memcpy_nd (%a1[] [] [], %ha[%tx, 0, 0, 0, 0, %kk] {a_window}) : ({a1}, {a2})
              air.dma_memcpy_nd (%b1[] [] [], %hb[0, %ty, 0, 0, %kk, 0] {b_window}) : ({b1}, {b2})
              %s = {sub}
              func.call @op_has_no_registered_library_name(%a1, %b1, %s) : ({a1}, {b1}, {mine}) -> ()
            }}
            memref.dealloc %a1 : {a1}
            memref.dealloc %b1 : {b1}
          }}
        }}
        air.herd @drain tile (%tx, %ty) in (%w=%hm, %h=%hn) args(%acc=%acc2, %hc=%c2) : {acc}, {c2} attributes {{link_with = "mm.o"}} {{
          %s = {sub}
          %t = memref.alloc() : {out}
          func.call @f32_to_bf16_mn(%s, %t) : ({mine}, {out}) -> ()
          air.dma_memcpy_nd (%hc[%tx, %ty, 0, 0] [1, 1, {t.m}, {t.n}] [{t.herd_n * per_core}, {per_core}, {t.n}, 1], %t[0, 0, 0, 0, 0, 0] [1, 1, {t.m // 8}, 8, {t.n // 8}, 8] [{per_core}, {per_core}, 64, 8, {8 * t.m}, 1]) : ({c2}, {out})
          memref.dealloc %t : {out}
        }}
        air.dma_memcpy_nd (%sc[%row, %column] [{rows}, {columns}] [{n}, 1], %c2[0, 0, 0, 0] [{t.herd_m}, {t.m}, {t.herd_n}, {t.n}] [{t.herd_n * per_core}, {t.n}, {per_core}, 1]) : ({c3}, {c2})
        memref.dealloc %a2 : {a2}
        memref.dealloc %b2 : {b2}
        memref.dealloc %c2 : {c2}
        memref.dealloc %acc2 : {acc}
      }}
    }}
    return
  }}
}}
"""


def gemv(m: int, k: int, *, rows: int = 8, at_once: int = 8, cores: int = 8) -> str:
    """y [m] = A [m, k] @ x [k]: each core takes `rows` rows a launch, `at_once` of them a call.

    The defaults are those upstream measured for 8192 x 2048; longer rows need fewer (L1 holds at_once * k + k numbers).

    Raises:
        UnusableInput: m is no multiple of what one launch covers.
    """
    both = rows * cores
    _divides("m", m, both)
    _divides("k", k, 64)
    _divides("rows", rows, at_once)
    a3, x3, y3 = f"memref<{m}x{k}xbf16>", f"memref<{k}xbf16>", f"memref<{m}xbf16>"
    a2, y2 = f"memref<{both}x{k}xbf16, {_L2}>", f"memref<{both}xbf16, {_L2}>"
    a1, x1, y1 = f"memref<{at_once}x{k}xbf16, {_L1}>", f"memref<{k}xbf16, {_L1}>", f"memref<{rows}xbf16, {_L1}>"
    return f"""#launch = affine_map<()[s0] -> (s0 * {both})>
#row = affine_map<()[s0, s1] -> (s0 * {rows} + s1 * {at_once})>
#at = affine_map<()[s0] -> (s0 * {at_once})>
#core = affine_map<()[s0] -> (s0 * {rows})>
module {{
  func.func private @matvec_vectorized_bf16_bf16(i32, i32, i32, {a1}, {x1}, {y1}) attributes {{link_with = "mv.o", llvm.emit_c_interface}}
  func.func private @linalg_fill_bf16({y1}) attributes {{link_with = "mv.o", llvm.emit_c_interface}}
  func.func @matvec_bf16(%a: {a3}, %x: {x3}, %y: {y3}) {{
    %n = arith.constant {m // both} : index
    %one = arith.constant 1 : index
    air.launch (%i, %j) in (%si=%n, %sj=%one) args(%la=%a, %lx=%x, %ly=%y) : {a3}, {x3}, {y3} {{
      air.segment @matvec_seg args(%p=%i, %sa=%la, %sx=%lx, %sy=%ly) : index, {a3}, {x3}, {y3} {{
        %c1 = arith.constant 1 : index
        %cores = arith.constant {cores} : index
        %a2 = memref.alloc() : {a2}
        %y2 = memref.alloc() : {y2}
        %first = affine.apply #launch()[%p]
        air.dma_memcpy_nd (%a2[] [] [], %sa[%first, 0] [{both}, {k}] [{k}, 1]) : ({a2}, {a3})
        air.herd @matvec tile (%tx, %ty) in (%w=%cores, %h=%c1) args(%hx=%sx, %ha=%a2, %hy=%y2) : {x3}, {a2}, {y2} attributes {{link_with = "mv.o"}} {{
          %h0 = arith.constant 0 : index
          %h1 = arith.constant 1 : index
          %count = arith.constant {rows // at_once} : index
          %m1 = arith.constant {at_once} : i32
          %k1 = arith.constant {k} : i32
          %a1 = memref.alloc() : {a1}
          %x1 = memref.alloc() : {x1}
          %y1 = memref.alloc() : {y1}
          func.call @linalg_fill_bf16(%y1) : ({y1}) -> ()
          scf.for %r = %h0 to %count step %h1 {{
            air.dma_memcpy_nd (%x1[] [] [], %hx[0] [{k}] [1]) : ({x1}, {x3})
            %row = affine.apply #row()[%tx, %r]
            air.dma_memcpy_nd (%a1[] [] [], %ha[%row, 0] [{at_once}, {k}] [{k}, 1]) : ({a1}, {a2})
            %to_row = affine.apply #at()[%r]
            %at = arith.index_cast %to_row : index to i32
            func.call @matvec_vectorized_bf16_bf16(%m1, %k1, %at, %a1, %x1, %y1) : (i32, i32, i32, {a1}, {x1}, {y1}) -> ()
          }}
          %to = affine.apply #core()[%tx]
          air.dma_memcpy_nd (%hy[%to] [{rows}] [1], %y1[] [] []) : ({y2}, {y1})
          memref.dealloc %a1 : {a1}
          memref.dealloc %x1 : {x1}
          memref.dealloc %y1 : {y1}
        }}
        air.dma_memcpy_nd (%sy[%first] [{both}] [1], %y2[] [] []) : ({y3}, {y2})
        memref.dealloc %a2 : {a2}
        memref.dealloc %y2 : {y2}
      }}
    }}
    return
  }}
}}
"""
