// Eight tiles in two columns, two inputs and an output each: places.
#piece = affine_map<()[s0, s1, s2] -> (s0 + (s1 * 4 + s2) * 64)>
module {
  func.func private @compute(memref<64xbf16, 2 : i32>, memref<64xbf16, 2 : i32>, memref<64xbf16, 2 : i32>) attributes {link_with = "compute.o", llvm.emit_c_interface}
  func.func @rope(%a0: memref<65536xbf16>, %a1: memref<65536xbf16>, %a2: memref<65536xbf16>) {
    air.launch () in () args(%l0=%a0, %l1=%a1, %l2=%a2) : memref<65536xbf16>, memref<65536xbf16>, memref<65536xbf16> {
      air.segment @seg args(%s0=%l0, %s1=%l1, %s2=%l2) : memref<65536xbf16>, memref<65536xbf16>, memref<65536xbf16> {
        %cols = arith.constant 2 : index
        %rows = arith.constant 4 : index
        air.herd @herd tile (%tx, %ty) in (%sx=%cols, %sy=%rows) args(%h0=%s0, %h1=%s1, %h2=%s2) : memref<65536xbf16>, memref<65536xbf16>, memref<65536xbf16> attributes {link_with = "compute.o"} {
          %c0 = arith.constant 0 : index
          %end = arith.constant 65536 : index
          %step = arith.constant 512 : index
          scf.for %i = %c0 to %end step %step {
            %off = affine.apply #piece()[%i, %tx, %ty]
            %b0 = memref.alloc() : memref<64xbf16, 2 : i32>
            %b1 = memref.alloc() : memref<64xbf16, 2 : i32>
            %b2 = memref.alloc() : memref<64xbf16, 2 : i32>
            air.dma_memcpy_nd (%b0[] [] [], %h0[%off] [64] [1]) : (memref<64xbf16, 2 : i32>, memref<65536xbf16>)
            air.dma_memcpy_nd (%b1[] [] [], %h1[%off] [64] [1]) : (memref<64xbf16, 2 : i32>, memref<65536xbf16>)
            func.call @compute(%b0, %b1, %b2) : (memref<64xbf16, 2 : i32>, memref<64xbf16, 2 : i32>, memref<64xbf16, 2 : i32>) -> ()
            air.dma_memcpy_nd (%h2[%off] [64] [1], %b2[] [] []) : (memref<65536xbf16>, memref<64xbf16, 2 : i32>)
            memref.dealloc %b0 : memref<64xbf16, 2 : i32>
            memref.dealloc %b1 : memref<64xbf16, 2 : i32>
            memref.dealloc %b2 : memref<64xbf16, 2 : i32>
          }
        }
      }
    }
    return
  }
}
