#set = affine_set<(d0)[s0] : (d0 - s0 >= 0, -d0 + 7 >= 0)>
#map = affine_map<(d0)[s0] -> (d0 * 2 + s0)>
module {
  func.func @loops(%m: memref<8x8xi32>, %n: index, %b: i1) -> i32 {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c8 = arith.constant 8 : index
    %zero = arith.constant 0 : i32
    %t = air.wait_all async
    %s = scf.parallel (%i, %j) = (%c0, %c0) to (%c8, %c8) step (%c1, %c1) init (%t) -> !air.async.token {
      %w = air.wait_all async [%t]
      scf.reduce(%w : !air.async.token) {
      ^bb0(%l: !air.async.token, %r: !air.async.token):
        %both = air.wait_all async [%l, %r]
        scf.reduce.return %both : !air.async.token
      }
    }
    scf.parallel (%i) = (%c0) to (%c8) step (%c1) {
    }
    scf.forall (%i, %j) in (4, %n) {
      %x = affine.apply #map(%i)[%j]
    } {mapping = [#gpu.thread<x>, #gpu.thread<y>]}
    scf.forall (%i) = (0) to (%n) step (2) {
    }
    %r = scf.for %i = %c0 to %c8 step %c1 iter_args(%acc = %zero) -> i32 {
      %v = memref.load %m[%i, %c0] : memref<8x8xi32>
      %sum = arith.addi %acc, %v : i32
      scf.yield %sum : i32
    }
    %q = scf.if %b -> i32 {
      scf.yield %r : i32
    } else {
      scf.yield %zero : i32
    }
    %k = scf.while (%a = %c0) : (index) -> index {
      %more = arith.cmpi slt, %a, %c8 : index
      scf.condition(%more) %a : index
    } do {
    ^bb0(%a: index):
      %next = arith.addi %a, %c1 : index
      scf.yield %next : index
    }
    affine.for %i = 0 to 8 {
      %v = affine.load %m[%i, 2] : memref<8x8xi32>
      affine.store %v, %m[%i, 3] : memref<8x8xi32>
      affine.if #set(%i)[%n] {
        affine.store %zero, %m[%i, 4] : memref<8x8xi32>
      } else {
        affine.store %v, %m[%i, 5] : memref<8x8xi32>
      }
    }
    affine.parallel (%i, %j) = (0, 1) to (8, min(%n, 7)) step (1, 2) {
    }
    %d:2 = affine.delinearize_index %n into (%c8, 4) : index, index
    return %q : i32
  }
}
