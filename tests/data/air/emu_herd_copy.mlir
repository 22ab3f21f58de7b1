// Each tile of a 2x4 herd doubles its own block of a 16x32 matrix.
#row = affine_map<()[s0] -> (s0 * 8)>
module {
  func.func @double(%a: memref<16x32xi32>, %b: memref<16x32xi32>) {
    air.launch () in () args(%a1=%a, %b1=%b) : memref<16x32xi32>, memref<16x32xi32> {
      air.segment @seg args(%a2=%a1, %b2=%b1) : memref<16x32xi32>, memref<16x32xi32> {
        %c2 = arith.constant 2 : index
        %c4 = arith.constant 4 : index
        air.herd @h tile (%x, %y) in (%sx=%c2, %sy=%c4) args(%a3=%a2, %b3=%b2) : memref<16x32xi32>, memref<16x32xi32> {
          %r = affine.apply #row()[%x]
          %c = affine.apply #row()[%y]
          %in = memref.alloc() : memref<8x8xi32, 2>
          %out = memref.alloc() : memref<8x8xi32, 2>
          %c8 = arith.constant 8 : index
          %c1 = arith.constant 1 : index
          %c32 = arith.constant 32 : index
          %c0 = arith.constant 0 : index
          air.dma_memcpy_nd (%in[] [] [], %a3[%r, %c] [%c8, %c8] [%c32, %c1]) : (memref<8x8xi32, 2>, memref<16x32xi32>)
          scf.for %i = %c0 to %c8 step %c1 {
            scf.for %j = %c0 to %c8 step %c1 {
              %v = memref.load %in[%i, %j] : memref<8x8xi32, 2>
              %w = arith.addi %v, %v : i32
              memref.store %w, %out[%i, %j] : memref<8x8xi32, 2>
            }
          }
          air.dma_memcpy_nd (%b3[%r, %c] [%c8, %c8] [%c32, %c1], %out[] [] []) : (memref<16x32xi32>, memref<8x8xi32, 2>)
          memref.dealloc %in : memref<8x8xi32, 2>
          memref.dealloc %out : memref<8x8xi32, 2>
        }
      }
    }
    return
  }
}
