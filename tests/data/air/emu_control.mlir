// Control flow: affine.for and if, scf.while, parallel with a reduction, forall, a function with a body, a constant.
#set = affine_set<()[s0] : (s0 - 4 >= 0)>
module {
  memref.global "private" @table : memref<8xi32> = dense<[7, 6, 5, 4, 3, 2, 1, 0]>
  func.func private @bump(%m: memref<8xi32>, %i: index) {
    %v = memref.load %m[%i] : memref<8xi32>
    %k = arith.constant 1000 : i32
    %w = arith.addi %v, %k : i32
    memref.store %w, %m[%i] : memref<8xi32>
    return
  }
  func.func @f(%a: memref<8xi32>, %b: memref<8xi32>) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c8 = arith.constant 8 : index
    %table = memref.get_global @table : memref<8xi32>
    affine.for %i = 0 to 8 {
      %v = affine.load %a[%i] : memref<8xi32>
      %t = affine.load %table[%i] : memref<8xi32>
      affine.if #set()[%i] {
        %s = arith.addi %v, %t : i32
        affine.store %s, %b[%i] : memref<8xi32>
      } else {
        %s = arith.subi %v, %t : i32
        affine.store %s, %b[%i] : memref<8xi32>
      }
    }
    %n = scf.while (%k = %c1) : (index) -> (index) {
      %more = arith.cmpi slt, %k, %c8 : index
      scf.condition(%more) %k : index
    } do {
    ^bb0(%k: index):
      %double = arith.addi %k, %k : index
      scf.yield %double : index
    }
    %zero = arith.constant 0 : i32
    %total = scf.parallel (%i) = (%c0) to (%c8) step (%c1) init (%zero) -> i32 {
      %v = memref.load %a[%i] : memref<8xi32>
      scf.reduce(%v : i32) {
      ^bb0(%l: i32, %r: i32):
        %s = arith.addi %l, %r : i32
        scf.reduce.return %s : i32
      }
    }
    scf.forall (%i) in (2) {
      func.call @bump(%b, %i) : (memref<8xi32>, index) -> ()
    }
    %c7 = arith.constant 7 : index
    %nn = arith.index_cast %n : index to i32
    %both = arith.addi %total, %nn : i32
    memref.store %both, %b[%c7] : memref<8xi32>
    return
  }
}
