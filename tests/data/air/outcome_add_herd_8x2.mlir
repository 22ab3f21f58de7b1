// Sixteen tiles with two input streams each: 32 shim channels where there are 16.
#piece = affine_map<()[s0, s1, s2] -> (s0 + (s1 * 2 + s2) * 2048)>
module {
  func.func private @compute(memref<2048xbf16, 2 : i32>, memref<2048xbf16, 2 : i32>, memref<2048xbf16, 2 : i32>) attributes {link_with = "compute.o", llvm.emit_c_interface}
  func.func @add(%a0: memref<4194304xbf16>, %a1: memref<4194304xbf16>, %a2: memref<4194304xbf16>) {
    air.launch () in () args(%l0=%a0, %l1=%a1, %l2=%a2) : memref<4194304xbf16>, memref<4194304xbf16>, memref<4194304xbf16> {
      air.segment @seg args(%s0=%l0, %s1=%l1, %s2=%l2) : memref<4194304xbf16>, memref<4194304xbf16>, memref<4194304xbf16> {
        %cols = arith.constant 8 : index
        %rows = arith.constant 2 : index
        air.herd @herd tile (%tx, %ty) in (%sx=%cols, %sy=%rows) args(%h0=%s0, %h1=%s1, %h2=%s2) : memref<4194304xbf16>, memref<4194304xbf16>, memref<4194304xbf16> attributes {link_with = "compute.o"} {
          %c0 = arith.constant 0 : index
          %end = arith.constant 4194304 : index
          %step = arith.constant 32768 : index
          scf.for %i = %c0 to %end step %step {
            %off = affine.apply #piece()[%i, %tx, %ty]
            %b0 = memref.alloc() : memref<2048xbf16, 2 : i32>
            %b1 = memref.alloc() : memref<2048xbf16, 2 : i32>
            %b2 = memref.alloc() : memref<2048xbf16, 2 : i32>
            air.dma_memcpy_nd (%b0[] [] [], %h0[%off] [2048] [1]) : (memref<2048xbf16, 2 : i32>, memref<4194304xbf16>)
            air.dma_memcpy_nd (%b1[] [] [], %h1[%off] [2048] [1]) : (memref<2048xbf16, 2 : i32>, memref<4194304xbf16>)
            func.call @compute(%b0, %b1, %b2) : (memref<2048xbf16, 2 : i32>, memref<2048xbf16, 2 : i32>, memref<2048xbf16, 2 : i32>) -> ()
            air.dma_memcpy_nd (%h2[%off] [2048] [1], %b2[] [] []) : (memref<4194304xbf16>, memref<2048xbf16, 2 : i32>)
            memref.dealloc %b0 : memref<2048xbf16, 2 : i32>
            memref.dealloc %b1 : memref<2048xbf16, 2 : i32>
            memref.dealloc %b2 : memref<2048xbf16, 2 : i32>
          }
        }
      }
    }
    return
  }
}
