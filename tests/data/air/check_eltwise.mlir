// Eltwise add of bf16 on a row of eight cores: two inputs and one output a tile, moved by DMA in a loop.
#offset = affine_map<()[s0, s1] -> (s0 * 8192 + s1 * 1024)>
module {
  func.func private @add_bf16(memref<1024xbf16, 2 : i32>, memref<1024xbf16, 2 : i32>, memref<1024xbf16, 2 : i32>) attributes {link_with = "add.o", llvm.emit_c_interface}
  func.func @eltwise(%a: memref<65536xbf16>, %b: memref<65536xbf16>, %c: memref<65536xbf16>) {
    air.launch () in () args(%la=%a, %lb=%b, %lc=%c) : memref<65536xbf16>, memref<65536xbf16>, memref<65536xbf16> {
      air.segment @seg args(%sa=%la, %sb=%lb, %sc=%lc) : memref<65536xbf16>, memref<65536xbf16>, memref<65536xbf16> {
        %columns = arith.constant 8 : index
        %rows = arith.constant 1 : index
        air.herd @add tile (%x, %y) in (%w=%columns, %h=%rows) args(%ha=%sa, %hb=%sb, %hc=%sc) : memref<65536xbf16>, memref<65536xbf16>, memref<65536xbf16> attributes {link_with = "add.o"} {
          %c0 = arith.constant 0 : index
          %c1 = arith.constant 1 : index
          %c8 = arith.constant 8 : index
          %l1a = memref.alloc() : memref<1024xbf16, 2 : i32>
          %l1b = memref.alloc() : memref<1024xbf16, 2 : i32>
          %l1c = memref.alloc() : memref<1024xbf16, 2 : i32>
          scf.for %i = %c0 to %c8 step %c1 {
            %at = affine.apply #offset()[%i, %x]
            air.dma_memcpy_nd (%l1a[] [] [], %ha[%at] [1024] [1]) : (memref<1024xbf16, 2 : i32>, memref<65536xbf16>)
            air.dma_memcpy_nd (%l1b[] [] [], %hb[%at] [1024] [1]) : (memref<1024xbf16, 2 : i32>, memref<65536xbf16>)
            func.call @add_bf16(%l1a, %l1b, %l1c) : (memref<1024xbf16, 2 : i32>, memref<1024xbf16, 2 : i32>, memref<1024xbf16, 2 : i32>) -> ()
            air.dma_memcpy_nd (%hc[%at] [1024] [1], %l1c[] [] []) : (memref<65536xbf16>, memref<1024xbf16, 2 : i32>)
          }
          memref.dealloc %l1a : memref<1024xbf16, 2 : i32>
          memref.dealloc %l1b : memref<1024xbf16, 2 : i32>
          memref.dealloc %l1c : memref<1024xbf16, 2 : i32>
        }
      }
    }
    return
  }
}
