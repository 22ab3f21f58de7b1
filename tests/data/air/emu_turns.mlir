// Two tiles write a row each of an L1 buffer, one neighbour reads it: four turns, handed over by locks.
module {
  air.channel @in [2]
  air.channel @out []
  func.func @f(%a: memref<4x8xi32>, %b: memref<4x8xi32>) {
    air.launch () in () args(%a1=%a, %b1=%b) : memref<4x8xi32>, memref<4x8xi32> {
      air.segment @seg args(%a2=%a1) : memref<4x8xi32> {
        %c0 = arith.constant 0 : index
        %c1 = arith.constant 1 : index
        %c2 = arith.constant 2 : index
        %shared = memref.alloc() : memref<2x4xi32, 2>
        air.herd @writer tile (%x, %y) in (%sx=%c1, %sy=%c2) args(%s=%shared, %a3=%a2) : memref<2x4xi32, 2>, memref<4x8xi32> {
          %z = arith.constant 0 : index
          %one = arith.constant 1 : index
          %n = arith.constant 4 : index
          %eight = arith.constant 8 : index
          %four = arith.constant 4 : index
          scf.for %i = %z to %n step %one {
            %m = memref.alloc() : memref<4xi32, 2>
            %c = arith.muli %y, %four : index
            air.dma_memcpy_nd (%m[] [] [], %a3[%i, %c] [%one, %four] [%eight, %one]) : (memref<4xi32, 2>, memref<4x8xi32>)
            scf.for %j = %z to %n step %one {
              %v = memref.load %m[%j] : memref<4xi32, 2>
              memref.store %v, %s[%y, %j] : memref<2x4xi32, 2>
            }
            memref.dealloc %m : memref<4xi32, 2>
          }
        }
        air.herd @reader tile (%x, %y) in (%sx=%c1, %sy=%c1) args(%s=%shared) : memref<2x4xi32, 2> {
          %z = arith.constant 0 : index
          %one = arith.constant 1 : index
          %n = arith.constant 4 : index
          %two = arith.constant 2 : index
          scf.for %i = %z to %n step %one {
            %m = memref.alloc() : memref<2x4xi32, 2>
            scf.for %r = %z to %two step %one {
              scf.for %j = %z to %n step %one {
                %v = memref.load %s[%r, %j] : memref<2x4xi32, 2>
                memref.store %v, %m[%r, %j] : memref<2x4xi32, 2>
              }
            }
            air.channel.put @out[] (%m[] [] []) : (memref<2x4xi32, 2>)
            memref.dealloc %m : memref<2x4xi32, 2>
          }
        }
        memref.dealloc %shared : memref<2x4xi32, 2>
      }
      air.channel.get @out[] (%b1[] [] []) : (memref<4x8xi32>)
    }
    return
  }
}
