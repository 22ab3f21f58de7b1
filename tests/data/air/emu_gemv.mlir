// A matrix-vector product in the structure of upstream's GEMV: a launch over blocks of rows, L2 per block, a herd 4x1.
#block = affine_map<()[s0] -> (s0 * 8)>
#mine = affine_map<()[s0, s1] -> (s0 * 2 + s1)>
#out = affine_map<()[s0] -> (s0 * 2)>
module {
  func.func private @matvec_vectorized_bf16_bf16(i32, i32, i32, memref<1x64xbf16, 2>, memref<64xbf16, 2>, memref<2xbf16, 2>) attributes {link_with = "mv.o"}
  func.func private @linalg_fill_bf16(memref<2xbf16, 2>) attributes {link_with = "mv.o"}
  func.func @gemv(%a: memref<80x64xbf16>, %x: memref<64xbf16>, %y: memref<80xbf16>) {
    %c10 = arith.constant 10 : index
    %c1 = arith.constant 1 : index
    air.launch (%i, %j) in (%si=%c10, %sj=%c1) args(%la=%a, %lx=%x, %ly=%y) : memref<80x64xbf16>, memref<64xbf16>, memref<80xbf16> {
      air.segment @seg args(%bi=%i, %sa=%la, %sx=%lx, %sy=%ly) : index, memref<80x64xbf16>, memref<64xbf16>, memref<80xbf16> {
        %a2 = memref.alloc() : memref<8x64xbf16, 1>
        %y2 = memref.alloc() : memref<8xbf16, 1>
        %row = affine.apply #block()[%bi]
        %z = arith.constant 0 : index
        %one = arith.constant 1 : index
        %c4 = arith.constant 4 : index
        %c8 = arith.constant 8 : index
        %c64 = arith.constant 64 : index
        air.dma_memcpy_nd (%a2[] [] [], %sa[%row, %z] [%c8, %c64] [%c64, %one]) : (memref<8x64xbf16, 1>, memref<80x64xbf16>)
        air.herd @h tile (%tx, %ty) in (%hx=%c4, %hy=%one) args(%hv=%sx, %ha=%a2, %ho=%y2) : memref<64xbf16>, memref<8x64xbf16, 1>, memref<8xbf16, 1> attributes {link_with = "mv.o"} {
          %a1 = memref.alloc() : memref<1x64xbf16, 2>
          %x1 = memref.alloc() : memref<64xbf16, 2>
          %y1 = memref.alloc() : memref<2xbf16, 2>
          %h0 = arith.constant 0 : index
          %h1 = arith.constant 1 : index
          %h2 = arith.constant 2 : index
          %h64 = arith.constant 64 : index
          func.call @linalg_fill_bf16(%y1) : (memref<2xbf16, 2>) -> ()
          scf.for %r = %h0 to %h2 step %h1 {
            air.dma_memcpy_nd (%x1[] [] [], %hv[] [] []) : (memref<64xbf16, 2>, memref<64xbf16>)
            %at = affine.apply #mine()[%tx, %r]
            air.dma_memcpy_nd (%a1[] [] [], %ha[%at, %h0] [%h1, %h64] [%h64, %h1]) : (memref<1x64xbf16, 2>, memref<8x64xbf16, 1>)
            %m = arith.constant 1 : i32
            %k = arith.constant 64 : i32
            %o = arith.index_cast %r : index to i32
            func.call @matvec_vectorized_bf16_bf16(%m, %k, %o, %a1, %x1, %y1) : (i32, i32, i32, memref<1x64xbf16, 2>, memref<64xbf16, 2>, memref<2xbf16, 2>) -> ()
          }
          %to = affine.apply #out()[%tx]
          air.dma_memcpy_nd (%ho[%to] [%h2] [%h1], %y1[] [] []) : (memref<8xbf16, 1>, memref<2xbf16, 2>)
        }
        air.dma_memcpy_nd (%sy[%row] [%c8] [%one], %y2[] [] []) : (memref<80xbf16>, memref<8xbf16, 1>)
      }
    }
    return
  }
}
