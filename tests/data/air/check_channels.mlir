// Four cores, each fed and drained by its own channel of an array.
module {
  air.channel @toCore [2, 2]
  air.channel @fromCore [2, 2]
  func.func @copy(%a: memref<256xi32>, %b: memref<256xi32>) {
    air.launch () in () args(%la=%a, %lb=%b) : memref<256xi32>, memref<256xi32> {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      air.channel.put @toCore[%c0, %c0] (%la[0] [64] [1]) : (memref<256xi32>)
      air.channel.put @toCore[%c0, %c1] (%la[64] [64] [1]) : (memref<256xi32>)
      air.channel.put @toCore[%c1, %c0] (%la[128] [64] [1]) : (memref<256xi32>)
      air.channel.put @toCore[%c1, %c1] (%la[192] [64] [1]) : (memref<256xi32>)
      air.channel.get @fromCore[%c0, %c0] (%lb[0] [64] [1]) : (memref<256xi32>)
      air.channel.get @fromCore[%c0, %c1] (%lb[64] [64] [1]) : (memref<256xi32>)
      air.channel.get @fromCore[%c1, %c0] (%lb[128] [64] [1]) : (memref<256xi32>)
      air.channel.get @fromCore[%c1, %c1] (%lb[192] [64] [1]) : (memref<256xi32>)
      air.segment @seg {
        %c2 = arith.constant 2 : index
        air.herd @copy tile (%x, %y) in (%w=%c2, %h=%c2) {
          %buffer = memref.alloc() : memref<64xi32, 2 : i32>
          air.channel.get @toCore[%x, %y] (%buffer[] [] []) : (memref<64xi32, 2 : i32>)
          air.channel.put @fromCore[%x, %y] (%buffer[] [] []) : (memref<64xi32, 2 : i32>)
          memref.dealloc %buffer : memref<64xi32, 2 : i32>
        }
      }
    }
    return
  }
}
