// Tokens: a segment with execute, dma, channels and herds that depend on each other, and a token carried by a loop.
module {
  air.channel @in [1]
  air.channel @out [1]
  func.func @f(%a: memref<4x8xf32>, %b: memref<4x8xf32>) {
    %t = air.launch async () in () args(%a1=%a, %b1=%b) : memref<4x8xf32>, memref<4x8xf32> {
      %s = air.segment @seg async args(%a2=%a1, %b2=%b1) : memref<4x8xf32>, memref<4x8xf32> {
        %c0 = arith.constant 0 : index
        %c1 = arith.constant 1 : index
        %c4 = arith.constant 4 : index
        %c8 = arith.constant 8 : index
        %ta, %l2 = air.execute -> (memref<4x8xf32, 1>) {
          %m = memref.alloc() : memref<4x8xf32, 1>
          air.execute_terminator %m : memref<4x8xf32, 1>
        }
        %h = air.herd @h async tile (%x, %y) in (%sx=%c1, %sy=%c1) {
          %d0 = arith.constant 0 : index
          %d1 = arith.constant 1 : index
          %d4 = arith.constant 4 : index
          %d8 = arith.constant 8 : index
          %two = arith.constant 2.0 : f32
          scf.for %i = %d0 to %d4 step %d1 {
            %l1 = memref.alloc() : memref<8xf32, 2>
            air.channel.get @in[] (%l1[] [] []) : (memref<8xf32, 2>)
            scf.for %j = %d0 to %d8 step %d1 {
              %v = memref.load %l1[%j] : memref<8xf32, 2>
              %w = arith.mulf %v, %two : f32
              memref.store %w, %l1[%j] : memref<8xf32, 2>
            }
            air.channel.put @out[] (%l1[] [] []) : (memref<8xf32, 2>)
            memref.dealloc %l1 : memref<8xf32, 2>
          }
        }
        %d = air.dma_memcpy_nd async [%ta] (%l2[] [] [], %a2[] [] []) : (memref<4x8xf32, 1>, memref<4x8xf32>)
        %loop = scf.for %i = %c0 to %c4 step %c1 iter_args(%token = %d) -> (!air.async.token) {
          %p = air.channel.put async [%token] @in[] (%l2[%i, %c0] [%c1, %c8] [%c8, %c1]) : (memref<4x8xf32, 1>)
          %g = air.channel.get async [%p] @out[] (%b2[%i, %c0] [%c1, %c8] [%c8, %c1]) : (memref<4x8xf32>)
          %both = air.wait_all async [%p, %g]
          scf.yield %both : !air.async.token
        }
        %free = air.execute [%loop, %h] {
          memref.dealloc %l2 : memref<4x8xf32, 1>
        }
        air.wait_all [%free]
      }
    }
    air.wait_all [%t]
    return
  }
}
