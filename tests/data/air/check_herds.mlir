// Two herds side by side in one segment, and a core that copies between them.
module {
  air.channel @in [1, 1]
  air.channel @between [1, 1]
  air.channel @out [1, 1]
  func.func @pair(%a: memref<64xi32>, %b: memref<64xi32>) {
    air.launch () in () args(%la=%a, %lb=%b) : memref<64xi32>, memref<64xi32> {
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %first = arith.constant 12 : index
      %second = arith.constant 16 : index
      scf.for %i = %zero to %first step %one {
        air.channel.put @in[] (%la[] [] []) : (memref<64xi32>)
      }
      scf.for %i = %zero to %second step %one {
        air.channel.get @out[] (%lb[] [] []) : (memref<64xi32>)
      }
      air.segment @seg {
        %p = arith.constant 4 : index
        %q = arith.constant 3 : index
        %r = arith.constant 4 : index
        %s = arith.constant 4 : index
        air.herd @first tile (%x, %y) in (%w=%p, %h=%q) {
          %buffer = memref.alloc() : memref<64xi32, 2 : i32>
          air.channel.get @in[] (%buffer[] [] []) : (memref<64xi32, 2 : i32>)
          air.channel.put @between[] (%buffer[] [] []) : (memref<64xi32, 2 : i32>)
          memref.dealloc %buffer : memref<64xi32, 2 : i32>
        }
        air.herd @second tile (%x, %y) in (%w=%r, %h=%s) {
          %buffer = memref.alloc() : memref<64xi32, 2 : i32>
          air.channel.get @between[] (%buffer[0] [48] [1]) : (memref<64xi32, 2 : i32>)
          air.channel.put @out[] (%buffer[] [] []) : (memref<64xi32, 2 : i32>)
          memref.dealloc %buffer : memref<64xi32, 2 : i32>
        }
      }
    }
    return
  }
}
