// A transpose by the DMA: the source window steps 16 elements innermost.
module {
  func.func @transpose(%a: memref<16x16xi32>, %b: memref<16x16xi32>) {
    air.launch () in () args(%la=%a, %lb=%b) : memref<16x16xi32>, memref<16x16xi32> {
      air.segment @seg args(%sa=%la, %sb=%lb) : memref<16x16xi32>, memref<16x16xi32> {
        %c1 = arith.constant 1 : index
        air.herd @herd tile (%tx, %ty) in (%sx=%c1, %sy=%c1) args(%ha=%sa, %hb=%sb) : memref<16x16xi32>, memref<16x16xi32> {
          %t = memref.alloc() : memref<16x16xi32, 2 : i32>
          air.dma_memcpy_nd (%t[] [] [], %ha[0, 0] [16, 16] [1, 16]) : (memref<16x16xi32, 2 : i32>, memref<16x16xi32>)
          air.dma_memcpy_nd (%hb[] [] [], %t[] [] []) : (memref<16x16xi32>, memref<16x16xi32, 2 : i32>)
          memref.dealloc %t : memref<16x16xi32, 2 : i32>
        }
      }
    }
    return
  }
}
