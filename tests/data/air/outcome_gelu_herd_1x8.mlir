// A herd of eight rows on an array of four.
#piece = affine_map<()[s0, s1, s2] -> (s0 + (s1 * 8 + s2) * 4096)>
module {
  func.func private @compute(memref<4096xbf16, 2 : i32>, memref<4096xbf16, 2 : i32>) attributes {link_with = "compute.o", llvm.emit_c_interface}
  func.func @gelu(%a0: memref<1048576xbf16>, %a1: memref<1048576xbf16>) {
    air.launch () in () args(%l0=%a0, %l1=%a1) : memref<1048576xbf16>, memref<1048576xbf16> {
      air.segment @seg args(%s0=%l0, %s1=%l1) : memref<1048576xbf16>, memref<1048576xbf16> {
        %cols = arith.constant 1 : index
        %rows = arith.constant 8 : index
        air.herd @herd tile (%tx, %ty) in (%sx=%cols, %sy=%rows) args(%h0=%s0, %h1=%s1) : memref<1048576xbf16>, memref<1048576xbf16> attributes {link_with = "compute.o"} {
          %c0 = arith.constant 0 : index
          %end = arith.constant 1048576 : index
          %step = arith.constant 32768 : index
          scf.for %i = %c0 to %end step %step {
            %off = affine.apply #piece()[%i, %tx, %ty]
            %b0 = memref.alloc() : memref<4096xbf16, 2 : i32>
            %b1 = memref.alloc() : memref<4096xbf16, 2 : i32>
            air.dma_memcpy_nd (%b0[] [] [], %h0[%off] [4096] [1]) : (memref<4096xbf16, 2 : i32>, memref<1048576xbf16>)
            func.call @compute(%b0, %b1) : (memref<4096xbf16, 2 : i32>, memref<4096xbf16, 2 : i32>) -> ()
            air.dma_memcpy_nd (%h1[%off] [4096] [1], %b1[] [] []) : (memref<1048576xbf16>, memref<4096xbf16, 2 : i32>)
            memref.dealloc %b0 : memref<4096xbf16, 2 : i32>
            memref.dealloc %b1 : memref<4096xbf16, 2 : i32>
          }
        }
      }
    }
    return
  }
}
