#loc = loc("builder.py":12:3)
#map = affine_map<(d0) -> (d0 floordiv 4 + d0 mod 4)>
!row = memref<64xf32>
module @named attributes {made.by = "hand"} {
  func.func @f(%a: !row loc(unknown), %n: index) attributes {llvm.emit_c_interface} {
    %x = affine.apply #map(%n) loc(#loc)
    %c = arith.constant dense_resource<weights> : tensor<2xf32> loc(callsite("g" at "h.py":1:2))
    %big = arith.constant dense<7> : tensor<1024x1024xi32>
    %hex = arith.constant 0x7FC0 : bf16
    %neg = arith.constant -1.5e-3 : f32
    "air.herd"(%n, %n) ({
    ^bb0(%x_0: index, %y: index, %n: index, %a: index):
      "air.herd_terminator"() : () -> ()
    }) {operandSegmentSizes = array<i32: 0, 2, 0>} : (index, index) -> ()
    return loc(fused["a", "b"])
  } loc("f")
}
{-#
  dialect_resources: {
    builtin: {
      weights: "0x040000000000803F00000040"
    }
  }
#-}
