// A 64x64 tile staged through L2 and re-ordered in blocks of 8x8 on the way to one core.
module {
  func.func @staged(%a: memref<64x64xbf16>, %b: memref<64x64xbf16>) {
    air.launch () in () args(%la=%a, %lb=%b) : memref<64x64xbf16>, memref<64x64xbf16> {
      air.segment @seg args(%sa=%la, %sb=%lb) : memref<64x64xbf16>, memref<64x64xbf16> {
        %c1 = arith.constant 1 : index
        %l2 = memref.alloc() : memref<64x64xbf16, 1 : i32>
        %l2out = memref.alloc() : memref<64x64xbf16, 1 : i32>
        air.dma_memcpy_nd (%l2[] [] [], %sa[] [] []) : (memref<64x64xbf16, 1 : i32>, memref<64x64xbf16>)
        air.herd @work tile (%x, %y) in (%w=%c1, %h=%c1) args(%hl2=%l2, %ho=%l2out) : memref<64x64xbf16, 1 : i32>, memref<64x64xbf16, 1 : i32> {
          %l1 = memref.alloc() : memref<8x8x8x8xbf16, 2 : i32>
          air.dma_memcpy_nd (%l1[] [] [], %hl2[0, 0, 0, 0] [8, 8, 8, 8] [8, 512, 64, 1]) : (memref<8x8x8x8xbf16, 2 : i32>, memref<64x64xbf16, 1 : i32>)
          air.dma_memcpy_nd (%ho[] [] [], %l1[0, 0, 0, 0] [8, 8, 8, 8] [64, 8, 512, 1]) : (memref<64x64xbf16, 1 : i32>, memref<8x8x8x8xbf16, 2 : i32>)
          memref.dealloc %l1 : memref<8x8x8x8xbf16, 2 : i32>
        }
        air.dma_memcpy_nd (%sb[] [] [], %l2out[] [] []) : (memref<64x64xbf16>, memref<64x64xbf16, 1 : i32>)
        memref.dealloc %l2 : memref<64x64xbf16, 1 : i32>
        memref.dealloc %l2out : memref<64x64xbf16, 1 : i32>
      }
    }
    return
  }
}
