"builtin.module"() ({
  "air.channel"() {size = [2], sym_name = "in"} : () -> ()
  "air.channel"() <{sym_name = "out", channel_type = "npu_cascade"}> : () -> ()
  "func.func"() <{function_type = (memref<8xi32>) -> (), sym_name = "f"}> ({
  ^bb0(%arg0: memref<8xi32>):
    %0 = "arith.constant"() <{value = 1 : index}> : () -> index
    %1 = "air.wait_all"() : () -> !air.async.token
    %2 = "air.launch"(%1, %0, %arg0) <{operandSegmentSizes = array<i32: 1, 1, 1>}> ({
    ^bb0(%arg1: index, %arg2: index, %arg3: memref<8xi32>):
      "air.channel.put"(%arg1, %arg3, %arg1) {chan_name = @in, operandSegmentSizes = array<i32: 0, 1, 1, 1, 0, 0, 0>, static_src_offsets = array<i64: -9223372036854775808>, static_src_sizes = array<i64: 4>, static_src_strides = array<i64: 1>} : (index, memref<8xi32>, index) -> ()
      "air.herd"(%arg2, %arg2) <{operandSegmentSizes = array<i32: 0, 2, 0>, sym_name = "h"}> ({
      ^bb0(%x: index, %y: index, %sx: index, %sy: index):
        %l1 = "memref.alloc"() <{operandSegmentSizes = array<i32: 0, 0>}> : () -> memref<4xi32, 2 : i32>
        "air.channel.get"(%x, %l1) {chan_name = @in, operandSegmentSizes = array<i32: 0, 1, 1, 0, 0, 0>, static_dst_offsets = array<i64>, static_dst_sizes = array<i64>, static_dst_strides = array<i64>} : (index, memref<4xi32, 2 : i32>) -> ()
        "air.herd_terminator"() : () -> ()
      }) : (index, index) -> ()
      "air.launch_terminator"() : () -> ()
    }) : (!air.async.token, index, memref<8xi32>) -> !air.async.token
    "somebody.else"(%0) {anything = #somebody.attr<[1, {x}]>, t = !somebody.type<4>} : (index) -> ()
    "func.return"() : () -> ()
  }) : () -> ()
}) : () -> ()
