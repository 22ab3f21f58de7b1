// Two instances of a segment, each with a channel between its two tiles that has the same index in both.
module {
  air.channel @in [2]
  air.channel @between []
  air.channel @out [2]
  func.func @f(%a: memref<32xi32>, %b: memref<32xi32>) {
    air.launch () in () args(%a1=%a, %b1=%b) : memref<32xi32>, memref<32xi32> {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c2 = arith.constant 2 : index
      %c16 = arith.constant 16 : index
      air.channel.put @in[%c0] (%a1[%c0] [%c16] [%c1]) : (memref<32xi32>)
      air.channel.put @in[%c1] (%a1[%c16] [%c16] [%c1]) : (memref<32xi32>)
      air.segment @seg unroll (%u) in (%su=%c2) {
        %d1 = arith.constant 1 : index
        %d2 = arith.constant 2 : index
        air.herd @h tile (%x, %y) in (%sx=%d2, %sy=%d1) args(%which=%u) : index {
          %z = arith.constant 0 : index
          %m = memref.alloc() : memref<4xi32, 2>
          %one = arith.constant 1 : index
          %n = arith.constant 4 : index
          %first = arith.cmpi eq, %x, %z : index
          scf.for %i = %z to %n step %one {
            scf.if %first {
              air.channel.get @in[%which] (%m[] [] []) : (memref<4xi32, 2>)
              air.channel.put @between[] (%m[] [] []) : (memref<4xi32, 2>)
            } else {
              air.channel.get @between[] (%m[] [] []) : (memref<4xi32, 2>)
              air.channel.put @out[%which] (%m[] [] []) : (memref<4xi32, 2>)
            }
          }
        }
      }
      air.channel.get @out[%c0] (%b1[%c0] [%c16] [%c1]) : (memref<32xi32>)
      air.channel.get @out[%c1] (%b1[%c16] [%c16] [%c1]) : (memref<32xi32>)
    }
    return
  }
}
