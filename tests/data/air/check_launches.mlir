// Two launches in one function: the first copies, the second copies again.
module {
  func.func @twice(%a: memref<64xi32>, %b: memref<64xi32>, %c: memref<64xi32>) {
    air.launch @first () in () args(%la=%a, %lb=%b) : memref<64xi32>, memref<64xi32> {
      air.segment @seg args(%sa=%la, %sb=%lb) : memref<64xi32>, memref<64xi32> {
        %c1 = arith.constant 1 : index
        air.herd @copy tile (%x, %y) in (%w=%c1, %h=%c1) args(%ha=%sa, %hb=%sb) : memref<64xi32>, memref<64xi32> {
          %buffer = memref.alloc() : memref<64xi32, 2 : i32>
          air.dma_memcpy_nd (%buffer[] [] [], %ha[] [] []) : (memref<64xi32, 2 : i32>, memref<64xi32>)
          air.dma_memcpy_nd (%hb[] [] [], %buffer[] [] []) : (memref<64xi32>, memref<64xi32, 2 : i32>)
          memref.dealloc %buffer : memref<64xi32, 2 : i32>
        }
      }
    }
    air.launch @second () in () args(%la=%b, %lb=%c) : memref<64xi32>, memref<64xi32> {
      air.segment @seg args(%sa=%la, %sb=%lb) : memref<64xi32>, memref<64xi32> {
        %c1 = arith.constant 1 : index
        air.herd @copy tile (%x, %y) in (%w=%c1, %h=%c1) args(%ha=%sa, %hb=%sb) : memref<64xi32>, memref<64xi32> {
          %buffer = memref.alloc() : memref<64xi32, 2 : i32>
          air.dma_memcpy_nd (%buffer[] [] [], %ha[] [] []) : (memref<64xi32, 2 : i32>, memref<64xi32>)
          air.dma_memcpy_nd (%hb[] [] [], %buffer[] [] []) : (memref<64xi32>, memref<64xi32, 2 : i32>)
          memref.dealloc %buffer : memref<64xi32, 2 : i32>
        }
      }
    }
    return
  }
}
