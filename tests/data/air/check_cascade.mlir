// A sum handed through four cores, each to its eastern neighbour.
#first = affine_set<()[s0] : (s0 == 0)>
#last = affine_set<()[s0] : (s0 - 3 == 0)>
#before = affine_map<()[s0] -> (s0 - 1)>
module {
  air.channel @in [1, 1]
  air.channel @sum [4, 1] {channel_type = "npu_cascade"}
  air.channel @out [1, 1]
  func.func @reduce(%a: memref<64xi32>, %b: memref<64xi32>) {
    air.launch () in () args(%la=%a, %lb=%b) : memref<64xi32>, memref<64xi32> {
      air.channel.put @in[] (%la[] [] []) : (memref<64xi32>)
      air.channel.get @out[] (%lb[] [] []) : (memref<64xi32>)
      air.segment @seg {
        %c4 = arith.constant 4 : index
        %c1 = arith.constant 1 : index
        air.herd @chain tile (%x, %y) in (%w=%c4, %h=%c1) {
          %c0 = arith.constant 0 : index
          %buffer = memref.alloc() : memref<64xi32, 2 : i32>
          affine.if #first()[%x] {
            air.channel.get @in[] (%buffer[] [] []) : (memref<64xi32, 2 : i32>)
          } else {
            %from = affine.apply #before()[%x]
            air.channel.get @sum[%from, %c0] (%buffer[] [] []) : (memref<64xi32, 2 : i32>)
          }
          affine.if #last()[%x] {
            air.channel.put @out[] (%buffer[] [] []) : (memref<64xi32, 2 : i32>)
          } else {
            air.channel.put @sum[%x, %c0] (%buffer[] [] []) : (memref<64xi32, 2 : i32>)
          }
          memref.dealloc %buffer : memref<64xi32, 2 : i32>
        }
      }
    }
    return
  }
}
