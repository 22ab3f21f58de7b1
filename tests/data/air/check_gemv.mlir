// The data movement of a matrix-vector product: the vector is sent again for every group of rows.
#rows = affine_map<()[s0, s1] -> (s0 * 32 + s1 * 4)>
module {
  func.func @gemv(%a: memref<2048x1024xbf16>, %x: memref<1024xbf16>, %y: memref<2048xbf16>) {
    %c64 = arith.constant 64 : index
    air.launch (%i) in (%n=%c64) args(%la=%a, %lx=%x, %ly=%y) : memref<2048x1024xbf16>, memref<1024xbf16>, memref<2048xbf16> {
      air.segment @seg args(%si=%i, %sa=%la, %sx=%lx, %sy=%ly) : index, memref<2048x1024xbf16>, memref<1024xbf16>, memref<2048xbf16> {
        %c8 = arith.constant 8 : index
        %c1 = arith.constant 1 : index
        air.herd @mv tile (%tx, %ty) in (%w=%c8, %h=%c1) args(%hi=%si, %ha=%sa, %hx=%sx, %hy=%sy) : index, memref<2048x1024xbf16>, memref<1024xbf16>, memref<2048xbf16> {
          %c0 = arith.constant 0 : index
          %step = arith.constant 1 : index
          %trips = arith.constant 2 : index
          %row = affine.apply #rows()[%hi, %tx]
          %m = memref.alloc() : memref<4x1024xbf16, 2 : i32>
          %v = memref.alloc() : memref<1024xbf16, 2 : i32>
          %o = memref.alloc() : memref<4xbf16, 2 : i32>
          scf.for %k = %c0 to %trips step %step {
            air.dma_memcpy_nd (%v[] [] [], %hx[0] [1024] [1]) : (memref<1024xbf16, 2 : i32>, memref<1024xbf16>)
            air.dma_memcpy_nd (%m[] [] [], %ha[%row, 0] [4, 1024] [1024, 1]) : (memref<4x1024xbf16, 2 : i32>, memref<2048x1024xbf16>)
          }
          air.dma_memcpy_nd (%hy[%row] [4] [1], %o[] [] []) : (memref<2048xbf16>, memref<4xbf16, 2 : i32>)
          memref.dealloc %m : memref<4x1024xbf16, 2 : i32>
          memref.dealloc %v : memref<1024xbf16, 2 : i32>
          memref.dealloc %o : memref<4xbf16, 2 : i32>
        }
      }
    }
    return
  }
}
