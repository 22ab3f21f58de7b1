// What upstream's passes print below AIR, and a transform script: two programs in one file.
module {
  aie.device(npu2) @segment_0 {
    %shim = aie.tile(0, 0)
    %core_tile = aie.tile(0, 2)
    %lock = aie.lock(%core_tile, 0) {init = 1 : i32}
    %buf = aie.buffer(%core_tile) {sym_name = "buf0"} : memref<32xi32, 2>
    %mem = aie.mem(%core_tile) {
      %0 = aie.dma_start(S2MM, 0, ^bb1, ^bb2, repeat_count = 3)
    ^bb1:
      %c1 = arith.constant 1 : i32
      aie.use_lock(%lock, AcquireGreaterEqual, %c1)
      aie.dma_bd(%buf : memref<32xi32, 2> offset = 0 len = 32 sizes = [4, 8] strides = [8, 1]) {task_id = 0 : i32}
      aie.use_lock(%lock, Release, 1)
      aie.next_bd ^bb1
    ^bb2:
      aie.end
    }
    %core = aie.core(%core_tile) { aie.end } {link_with = "kernel.o"}
    aie.flow(%shim, DMA : 0, %core_tile, DMA : 0)
    aie.packet_flow(1) {
      aie.packet_source<%shim, DMA : 1>
      aie.packet_dest<%core_tile, DMA : 1>
    }
    aie.shim_dma_allocation @in(%shim, MM2S, 0)
    aie.runtime_sequence @sequence(%a: memref<64xi32>) {
      %task = aiex.dma_configure_task_for @in {
        aie.dma_bd(%a : memref<64xi32> offset = 0 len = 64)
      }
      aiex.dma_start_task(%task)
    }
  }
  airrt.module_metadata {
    airrt.segment_metadata attributes {sym_name = "segment_0"} {
      airrt.herd_metadata {loc_x = 0 : i64, sym_name = "herd_0"}
    }
  }
  func.func @host(%a: memref<64xi32>) {
    %id = arith.constant 1 : i32
    %z = arith.constant 0 : i64
    %e = airrt.dma_memcpy_nd(%id, %z, %z, %a[%z, %z, %z, %z], [%z, %z, %z, %z], [%z, %z, %z, %z]) {metadata = @in} : (i32, i64, i64, memref<64xi32>) : !airrt.event
    airrt.wait_all %e {"air.launch_end"}
    %p = airrt.segment_load "segment_0" : i64
    return
  }
}
// -----
module attributes {transform.with_named_sequence} {
  transform.named_sequence @__transform_main(%root: !transform.any_op {transform.readonly}) {
    %par = transform.structured.match ops{["scf.parallel"]} attributes{outer} in %root : (!transform.any_op) -> !transform.any_op
    %launch = transform.air.par_to_launch %par {has_air_segment = true} : (!transform.any_op) -> !transform.any_op
    %first, %second = transform.split_handle %launch : (!transform.any_op<"air.launch">) -> (!transform.any_op, !transform.any_op)
    %tiled, %loops = transform.structured.tile_using_forall %first tile_sizes [8, 8, 0] : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    transform.apply_patterns to %tiled {
      transform.apply_patterns.canonicalization
    } : !transform.any_op
    transform.annotate %second "name" : !transform.any_op
    transform.yield
  }
}
