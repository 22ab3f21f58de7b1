// Two launches, each with a segment: compiles.
module {
  func.func @two(%a0: memref<1024xbf16>, %a1: memref<1024xbf16>, %a2: memref<1024xbf16>, %a3: memref<1024xbf16>) {
    air.launch () in () args(%la=%a0, %lb=%a1) : memref<1024xbf16>, memref<1024xbf16> {
      air.segment @seg0 args(%sa=%la, %sb=%lb) : memref<1024xbf16>, memref<1024xbf16> {
        %c0 = arith.constant 1 : index
        air.herd @herd0 tile (%tx, %ty) in (%sx=%c0, %sy=%c0) args(%ha=%sa, %hb=%sb) : memref<1024xbf16>, memref<1024xbf16> {
          %t = memref.alloc() : memref<1024xbf16, 2 : i32>
          air.dma_memcpy_nd (%t[] [] [], %ha[] [] []) : (memref<1024xbf16, 2 : i32>, memref<1024xbf16>)
          air.dma_memcpy_nd (%hb[] [] [], %t[] [] []) : (memref<1024xbf16>, memref<1024xbf16, 2 : i32>)
          memref.dealloc %t : memref<1024xbf16, 2 : i32>
        }
      }
    }
    air.launch () in () args(%la=%a2, %lb=%a3) : memref<1024xbf16>, memref<1024xbf16> {
      air.segment @seg1 args(%sa=%la, %sb=%lb) : memref<1024xbf16>, memref<1024xbf16> {
        %c1 = arith.constant 1 : index
        air.herd @herd1 tile (%tx, %ty) in (%sx=%c1, %sy=%c1) args(%ha=%sa, %hb=%sb) : memref<1024xbf16>, memref<1024xbf16> {
          %t = memref.alloc() : memref<1024xbf16, 2 : i32>
          air.dma_memcpy_nd (%t[] [] [], %ha[] [] []) : (memref<1024xbf16, 2 : i32>, memref<1024xbf16>)
          air.dma_memcpy_nd (%hb[] [] [], %t[] [] []) : (memref<1024xbf16>, memref<1024xbf16, 2 : i32>)
          memref.dealloc %t : memref<1024xbf16, 2 : i32>
        }
      }
    }
    return
  }
}
