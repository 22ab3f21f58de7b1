// One put reaches four tiles of a row; each adds its number and passes the sum on to the next tile.
module {
  air.channel @all [1, 1] {broadcast_shape = [4, 1]}
  air.channel @next [3] {channel_type = "npu_cascade"}
  air.channel @out []
  func.func @sum(%a: memref<16xi32>, %b: memref<16xi32>) {
    air.launch () in () args(%a1=%a, %b1=%b) : memref<16xi32>, memref<16xi32> {
      air.channel.put @all[] (%a1[] [] []) : (memref<16xi32>)
      air.segment @seg {
        %c4 = arith.constant 4 : index
        %c1 = arith.constant 1 : index
        air.herd @h tile (%x, %y) in (%sx=%c4, %sy=%c1) {
          %c0 = arith.constant 0 : index
          %one = arith.constant 1 : index
          %c3 = arith.constant 3 : index
          %c16 = arith.constant 16 : index
          %mine = memref.alloc() : memref<16xi32, 2>
          %before = memref.alloc() : memref<16xi32, 2>
          air.channel.get @all[%x, %y] (%mine[] [] []) : (memref<16xi32, 2>)
          %first = arith.cmpi eq, %x, %c0 : index
          scf.if %first {
            %id = arith.constant 100 : i32
            scf.for %i = %c0 to %c16 step %one {
              memref.store %id, %before[%i] : memref<16xi32, 2>
            }
          } else {
            %p = arith.subi %x, %one : index
            air.channel.get @next[%p] (%before[] [] []) : (memref<16xi32, 2>)
          }
          %n = arith.index_cast %x : index to i32
          scf.for %i = %c0 to %c16 step %one {
            %v = memref.load %mine[%i] : memref<16xi32, 2>
            %b0 = memref.load %before[%i] : memref<16xi32, 2>
            %s = arith.addi %v, %b0 : i32
            %t = arith.addi %s, %n : i32
            memref.store %t, %before[%i] : memref<16xi32, 2>
          }
          %last = arith.cmpi eq, %x, %c3 : index
          scf.if %last {
            air.channel.put @out[] (%before[] [] []) : (memref<16xi32, 2>)
          } else {
            air.channel.put @next[%x] (%before[] [] []) : (memref<16xi32, 2>)
          }
        }
      }
      air.channel.get @out[] (%b1[] [] []) : (memref<16xi32>)
    }
    return
  }
}
