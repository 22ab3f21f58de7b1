// Every AIR op in its custom form; the numbers mean nothing.
module {
  air.channel @stream [2, 2]
  air.channel @spread [1, 4] {broadcast_shape = [4, 4], channel_type = "npu_dma_stream"}
  air.channel @packets [] {channel_type = "npu_dma_packet", packet_ids = [1, 4]}

  func.func @ranks(%n: index, %bases: memref<?xindex>) {
    %c2 = arith.constant 2 : index
    %u = air.universe.alloc (%n)
    air.rank universe(%u) (%r) in (%nr = %c2) args(%b = %bases) : memref<?xindex> {
      %c0 = arith.constant 0 : index
      %m = memref.alloc() {air.symmetric} : memref<64xf32, #air.symmetric_heap>
      %t = air.translate %m, %c0, %r, %b : memref<64xf32, #air.symmetric_heap>, memref<?xindex>
      air.rank_terminator
    }
    return
  }

  func.func @everything(%a: memref<64x64xbf16>, %b: memref<64x64xbf16>) {
    %c2 = arith.constant 2 : index
    %c1 = arith.constant 1 : index
    %ready = air.wait_all async
    %done = air.launch @whole async [%ready] (%i, %j) in (%ni = %c1, %nj = %c2) args(%la = %a, %lb = %b) : memref<64x64xbf16>, memref<64x64xbf16> attributes {id = 1 : i32} {
      %c16 = arith.constant 16 : index
      %put = air.channel.put async @stream[%i, %j] (%la[%i, 0] [16, %c16] [64, 1]) {pad_before = array<i32: 0, 0>, pad_after = array<i32: 0, 2>} : (memref<64x64xbf16>)
      air.channel.put @packets[] (%la[] [] []) dest(%j) : (memref<64x64xbf16>)
      %got = air.channel.get async [%put] @stream[%i, %j] (%lb[] [] []) : (memref<64x64xbf16>)
      air.segment @part unroll(%x) in (%nx = %c16) args(%sa = %la) : memref<64x64xbf16> attributes {x_loc = 0 : i64, x_size = 4 : i64, y_loc = 2 : i64, y_size = 4 : i64} {
        %c4 = arith.constant 4 : index
        %token, %l2 = air.execute -> (memref<16x16xbf16, 1>) {
          %alloc = memref.alloc() : memref<16x16xbf16, 1>
          air.execute_terminator %alloc : memref<16x16xbf16, 1>
        }
        %moved = air.dma_memcpy_nd async [%token] (%l2[] [] [], %sa[%x, 0] [16, 16] [64, 1]) {id = 3 : i32} : (memref<16x16xbf16, 1>, memref<64x64xbf16>)
        %run = air.herd @work async [%moved] tile (%tx, %ty) in (%sx = %c4, %sy = %c4) args(%ha = %l2) : memref<16x16xbf16, 1> attributes {link_with = "kernel.o", x_loc = 1 : i64, y_loc = 2 : i64} {
          %l1 = memref.alloc() : memref<4x4xbf16, 2>
          air.dma_memcpy_nd (%l1[] [] [], %ha[%tx, %ty] [4, 4] [16, 1]) : (memref<4x4xbf16, 2>, memref<16x16xbf16, 1>)
          %custom = air.custom @kernel async operands (%l1) : memref<4x4xbf16, 2> attributes {latency = 4 : i32}
          air.wait_all [%custom]
          memref.dealloc %l1 : memref<4x4xbf16, 2>
        }
        %freed = air.execute [%run] {
          memref.dealloc %l2 : memref<16x16xbf16, 1>
        } {id = 2 : i32}
        air.segment_terminator
      }
      air.launch_terminator
    }
    air.herd tile (%tx, %ty) in (%sx = %c1, %sy = %c1) {
      air.herd_terminator
    }
    air.segment {
    }
    return
  }
}
