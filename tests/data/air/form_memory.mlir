module {
  memref.global "private" constant @table : memref<2x2xbf16> = dense<[[1.0, 2.0], [3.0, 4.0]]>
  memref.global @ones : memref<4xi32> = dense<1> {alignment = 64 : i64}
  memref.global "private" @later : memref<4xf32> = uninitialized
  func.func @shapes(%u: memref<*xf32>, %a: memref<64x32xf32>, %bytes: memref<256xi8>, %n: index) {
    %c0 = arith.constant 0 : index
    %g = memref.get_global @table : memref<2x2xbf16>
    %r = memref.reinterpret_cast %u to offset: [%n], sizes: [4, 4], strides: [%n, 1] : memref<*xf32> to memref<4x4xf32, strided<[?, 1], offset: ?>>
    %e = memref.expand_shape %a [[0, 1], [2]] output_shape [2, 32, 32] : memref<64x32xf32> into memref<2x32x32xf32>
    %c = memref.collapse_shape %e [[0, 1], [2]] : memref<2x32x32xf32> into memref<64x32xf32>
    %t = memref.transpose %a (d0, d1) -> (d1, d0) : memref<64x32xf32> to memref<32x64xf32, affine_map<(d0, d1) -> (d0 + d1 * 32)>>
    %v = memref.view %bytes[%c0][] : memref<256xi8> to memref<64xf32>
    %k = memref.cast %a : memref<64x32xf32> to memref<?x32xf32>
    %s = memref.subview %a[0, 0] [16, 16] [1, 1] : memref<64x32xf32> to memref<16x16xf32, strided<[32, 1]>>
    %p = memref.alloc() : memref<16x16xf32>
    memref.copy %s, %p : memref<16x16xf32, strided<[32, 1]>> to memref<16x16xf32>
    %dim = memref.dim %k, %c0 : memref<?x32xf32>
    %base, %offset, %sizes:2, %strides:2 = memref.extract_strided_metadata %a : memref<64x32xf32> -> memref<f32>, index, index, index, index, index
    memref.assume_alignment %a, 64 : memref<64x32xf32>
    return
  }
  func.func @vectors(%m: memref<64xbf16, 2>, %f: vector<16xf32>, %i: vector<16xi32>) -> bf16 {
    %c0 = arith.constant 0 : index
    %pad = arith.constant 0.0 : bf16
    %x = vector.transfer_read %m[%c0], %pad {in_bounds = [true]} : memref<64xbf16, 2>, vector<16xbf16>
    %y = arith.truncf %f : vector<16xf32> to vector<16xbf16>
    %z = arith.sitofp %i : vector<16xi32> to vector<16xf32>
    %gt = arith.cmpf ogt, %x, %y : vector<16xbf16>
    %w = arith.select %gt, %x, %y : vector<16xi1>, vector<16xbf16>
    %one = arith.select %gt, %x, %w : vector<16xi1>, vector<16xbf16>
    %b = vector.broadcast %pad : bf16 to vector<16xbf16>
    %fma = vector.fma %x, %b, %one : vector<16xbf16>
    %c = vector.shape_cast %fma : vector<16xbf16> to vector<4x4xbf16>
    %tr = vector.transpose %c, [1, 0] : vector<4x4xbf16> to vector<4x4xbf16>
    %acc = arith.constant dense<0.0> : vector<4x4xf32>
    %mm = vector.contract {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"], kind = #vector.kind<add>} %c, %tr, %acc : vector<4x4xbf16>, vector<4x4xbf16> into vector<4x4xf32>
    vector.transfer_write %fma, %m[%c0] {in_bounds = [true]} : vector<16xbf16>, memref<64xbf16, 2>
    %s = vector.reduction <add>, %fma : vector<16xbf16> into bf16
    return %s : bf16
  }
  func.func @named(%a: memref<32x32xi32, 2>, %b: memref<32x32xi32, 2>, %v: memref<32xi32, 2>) {
    %zero = arith.constant 0 : i32
    linalg.fill ins(%zero : i32) outs(%b : memref<32x32xi32, 2>)
    linalg.matmul {cast = #linalg.type_fn<cast_signed>} ins(%a, %a : memref<32x32xi32, 2>, memref<32x32xi32, 2>) outs(%b : memref<32x32xi32, 2>)
    linalg.vecmat ins(%v, %a : memref<32xi32, 2>, memref<32x32xi32, 2>) outs(%v : memref<32xi32, 2>)
    linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%v : memref<32xi32, 2>) outs(%v : memref<32xi32, 2>) {
    ^bb0(%in: i32, %out: i32):
      linalg.yield %in : i32
    }
    linalg.reduce { arith.addi } ins(%a : memref<32x32xi32, 2>) outs(%v : memref<32xi32, 2>) dimensions = [0]
    linalg.map { arith.addi {tag} } ins(%v, %v : memref<32xi32, 2>, memref<32xi32, 2>) outs(%v : memref<32xi32, 2>)
    linalg.softmax dimension(1) ins(%a : memref<32x32xi32, 2>) outs(%b : memref<32x32xi32, 2>)
    return
  }
  func.func @rest(%i: index, %x: f32, %v: vector<16xf32>, %w: vector<16xi32>, %mask: vector<16xi1>, %m: memref<16xf32>) {
    %sum = index.add %i, %i
    %four = index.constant 4
    %less = index.cmp slt(%sum, %four)
    %rem = arith.remf %x, %x fastmath<fast> : f32
    %nan = math.isnan %v : vector<16xf32>
    %outer = vector.outerproduct %v, %v : vector<16xf32>, vector<16xf32>
    %gathered = vector.gather %m[%i] [%w], %mask, %v : memref<16xf32>, vector<16xi32>, vector<16xi1>, vector<16xf32> into vector<16xf32>
    %masked = vector.mask %mask { vector.reduction <add>, %v : vector<16xf32> into f32 } : vector<16xi1> -> f32
    memref.prefetch %m[%i], read, locality<3>, data : memref<16xf32>
    %lane = affine.load %m[%i + symbol(%i) * 2] : memref<16xf32>
    return
  }
}
