"""linalg ops on memrefs: generic bodies of every shape, named ops, moving of data, per lane."""

import ml_dtypes
import numpy as np
import pytest

from npu_tools.emulator.blockfloat import quantise
from npu_tools.emulator.numerics import Numerics
from npu_tools.emulator.types import Fault
from tests.npu_tools.one_block import run_block, vector

rng = np.random.default_rng(11)


def bf16(*shape):
    return rng.standard_normal(shape).astype(ml_dtypes.bfloat16).astype(np.float32)


def rounded(values):
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


def ran(body, arguments, name="c", **options):
    return run_block(body, arguments, **options)[name]


MAPS = """
#i = affine_map<(i) -> (i)>
#s = affine_map<(i) -> ()>
#ij = affine_map<(i, j) -> (i, j)>
#ji = affine_map<(i, j) -> (j, i)>
#io = affine_map<(i, j) -> (i)>
#jo = affine_map<(i, j) -> (j)>
"""


def test_an_elementwise_body_rounds_bf16_results_but_for_products_that_are_added_to():
    a, b = bf16(16), bf16(16)
    got = ran(
        """linalg.generic {indexing_maps = [#i, #i, #i], iterator_types = ["parallel"]}
          ins(%a, %b : memref<16xbf16>, memref<16xbf16>) outs(%c : memref<16xbf16>) {
        ^bb0(%x: bf16, %y: bf16, %z: bf16):
          %p = arith.mulf %x, %y : bf16
          %q = arith.addf %p, %x : bf16
          %w = arith.subf %q, %y : bf16
          linalg.yield %w : bf16
        }""",
        {"a": ("memref<16xbf16>", a), "b": ("memref<16xbf16>", b), "c": ("memref<16xbf16>", np.nan)},
        head=MAPS,
    )
    np.testing.assert_array_equal(got[0, 0], rounded(rounded(a * b + a) - b))


def test_broadcast_and_transposed_operands_and_captured_values_that_differ_between_lanes():
    a, b = bf16(3, 4), bf16(4)
    lanes = np.float32([[1], [10]])
    got = ran(
        """linalg.generic {indexing_maps = [#ji, #io, #ij], iterator_types = ["parallel", "parallel"]}
          ins(%a, %b : memref<3x4xf32>, memref<4xf32>) outs(%c : memref<4x3xf32>) {
        ^bb0(%x: f32, %y: f32, %z: f32):
          %p = arith.mulf %x, %s : f32
          %q = arith.addf %p, %y : f32
          linalg.yield %q : f32
        }""",
        {"a": ("memref<3x4xf32>", a), "b": ("memref<4xf32>", b), "c": ("memref<4x3xf32>", 0), "s": ("f32", lanes)},
        head=MAPS,
        lanes=(2, 1),
    )
    for lane in range(2):
        np.testing.assert_array_equal(got[lane, 0], a.T * lanes[lane, 0] + b[:, None])


def test_index_and_constant_bodies():
    got = ran(
        """linalg.generic {indexing_maps = [#ij], iterator_types = ["parallel", "parallel"]} outs(%c : memref<2x3xi32>) {
        ^bb0(%z: i32):
          %i = linalg.index 0 : index
          %j = linalg.index 1 : index
          %t = arith.constant 10 : index
          %p = arith.muli %i, %t : index
          %q = arith.addi %p, %j : index
          %r = arith.index_cast %q : index to i32
          linalg.yield %r : i32
        }""",
        {"c": ("memref<2x3xi32>", 0)},
        head=MAPS,
    )
    np.testing.assert_array_equal(got[0, 0], [[0, 1, 2], [10, 11, 12]])


REDUCE = """linalg.generic {{indexing_maps = [#ij, #io], iterator_types = ["parallel", "reduction"]}}
  ins(%a : memref<3x8x{t}>) outs(%c : memref<3x{t}>) {{
^bb0(%x: {t}, %z: {t}):
  {body}
  linalg.yield %q : {t}
}}"""


def reduced(kind, body, a, c, **options):
    arguments = {"a": (f"memref<3x8x{kind}>", a), "c": (f"memref<3x{kind}>", c)}
    return ran(REDUCE.format(t=kind, body=body), arguments, head=MAPS, **options)[0, 0]


def test_reductions_by_one_combining_op():
    a, c = bf16(3, 8), bf16(3)
    got = reduced("f32", "%p = arith.mulf %x, %x : f32\n%q = arith.addf %z, %p : f32", a, c)
    np.testing.assert_allclose(got, (a * a).sum(1) + c, rtol=1e-6)
    np.testing.assert_array_equal(reduced("f32", "%q = arith.maximumf %x, %z : f32", a, c), np.maximum(a.max(1), c))
    n = rng.integers(-100, 100, (3, 8), dtype=np.int8)
    got = reduced("i8", "%q = arith.addi %x, %z : i8", n, np.int8([1, 2, 3]))
    np.testing.assert_array_equal(got, (n.astype(int).sum(1) + np.int64([1, 2, 3])).astype(np.int8))
    np.testing.assert_array_equal(
        reduced("i8", "%q = arith.minsi %z, %x : i8", n, np.int8([0, 0, 0])), np.minimum(n.min(1), 0)
    )


def test_a_reduction_into_a_dimension_of_one_and_dynamic_shapes():
    a = bf16(3, 8)
    text = REDUCE.replace("#io", "affine_map<(i, j) -> (i, 0)>").replace("memref<3x{t}>", "memref<3x1x{t}>")
    arguments = {"a": ("memref<3x8xf32>", a), "c": ("memref<3x1xf32>", 0.0)}
    got = ran(text.format(t="f32", body="%q = arith.addf %x, %z : f32"), arguments, head=MAPS)
    np.testing.assert_allclose(got[0, 0], a.sum(1, keepdims=True), rtol=1e-6)
    text = "linalg.matmul ins(%a, %a : memref<?x4xf32>, memref<?x4xf32>) outs(%a : memref<?x4xf32>)"
    with pytest.raises(Fault, match=r"linalg\.matmul: an operand has a dimension that is only known at run time"):
        run_block(text, {"a": ("memref<?x4xf32>", None)})


def test_a_bf16_sum_rounds_at_every_step_in_order():
    a, c = bf16(3, 8), bf16(3)
    expected = c
    for j in range(8):
        expected = rounded(expected + a[:, j])
    np.testing.assert_array_equal(reduced("bf16", "%q = arith.addf %z, %x : bf16", a, c), expected)


def test_a_body_that_uses_the_accumulator_freely_walks_in_order():
    a, c = bf16(3, 8), bf16(3)
    expected = c
    for j in range(8):
        expected = expected * np.float32(0.5) + a[:, j] * np.float32(j)
    body = """%h = arith.constant 0.5 : f32
      %i = linalg.index 1 : index
      %n = arith.index_cast %i : index to i32
      %f = arith.sitofp %n : i32 to f32
      %k = arith.mulf %z, %h : f32
      %w = arith.mulf %x, %f : f32
      %q = arith.addf %k, %w : f32"""
    np.testing.assert_array_equal(reduced("f32", body, a, c), expected)


def test_two_outputs_find_the_largest_and_where():
    a = bf16(3, 8)
    got = run_block(
        """linalg.generic {indexing_maps = [#ij, #io, #io], iterator_types = ["parallel", "reduction"]}
          ins(%a : memref<3x8xf32>) outs(%c, %d : memref<3xf32>, memref<3xi32>) {
        ^bb0(%x: f32, %z: f32, %w: i32):
          %j = linalg.index 1 : index
          %n = arith.index_cast %j : index to i32
          %more = arith.cmpf ogt, %x, %z : f32
          %p = arith.select %more, %x, %z : f32
          %q = arith.select %more, %n, %w : i32
          linalg.yield %p, %q : f32, i32
        }""",
        {"a": ("memref<3x8xf32>", a), "c": ("memref<3xf32>", -np.inf), "d": ("memref<3xi32>", -1)},
        head=MAPS,
    )
    np.testing.assert_array_equal(got["c"][0, 0], a.max(1))
    np.testing.assert_array_equal(got["d"][0, 0], a.argmax(1))


BLOCKED = """
#a = affine_map<(m, n, k, r, c, s) -> (k, m, r, s)>
#b = affine_map<(m, n, k, r, c, s) -> (n, k, s, c)>
#c = affine_map<(m, n, k, r, c, s) -> (n, m, r, c)>
"""


@pytest.mark.parametrize("acc", ["bf16", "f32"])
def test_a_blocked_bf16_matmul_is_the_matrix_units_and_rounds_once_at_its_end(acc):
    a, b, c = bf16(32, 64), bf16(64, 16), bf16(32, 16)
    blocks_a = a.reshape(4, 8, 8, 8).transpose(2, 0, 1, 3)
    blocks_b = b.reshape(8, 8, 2, 8).transpose(2, 0, 1, 3)
    blocks_c = c.reshape(4, 8, 2, 8).transpose(2, 0, 1, 3)
    extend = "%e = arith.extf %x : bf16 to f32\n%f = arith.extf %y : bf16 to f32\n" if acc == "f32" else ""
    x, y = ("%e", "%f") if acc == "f32" else ("%x", "%y")
    body = f"""linalg.generic {{indexing_maps = [#a, #b, #c],
       iterator_types = ["parallel", "parallel", "reduction", "parallel", "parallel", "reduction"]}}
      ins(%a, %b : memref<8x4x8x8xbf16>, memref<2x8x8x8xbf16>) outs(%c : memref<2x4x8x8x{acc}>) {{
    ^bb0(%x: bf16, %y: bf16, %z: {acc}):
      {extend}%p = arith.mulf {x}, {y} : {acc}
      %q = arith.addf %z, %p : {acc}
      linalg.yield %q : {acc}
    }}"""
    arguments = {
        "a": ("memref<8x4x8x8xbf16>", blocks_a),
        "b": ("memref<2x8x8x8xbf16>", blocks_b),
        "c": (f"memref<2x4x8x8x{acc}>", blocks_c),
    }
    got = ran(body, arguments, head=BLOCKED)[0, 0].transpose(1, 2, 0, 3).reshape(32, 16)
    exact = quantise(a, -1) @ quantise(b, -2) + c
    if acc == "f32":
        np.testing.assert_allclose(got, exact, rtol=1e-6, atol=1e-6)
    else:
        np.testing.assert_array_equal(got, rounded(got))
        np.testing.assert_allclose(got, exact, rtol=2**-8)
    plain = ran(body, arguments, head=BLOCKED, numerics=Numerics("f32"))[0, 0].transpose(1, 2, 0, 3).reshape(32, 16)
    np.testing.assert_allclose(plain, a @ b + c, rtol=1e-5, atol=1e-5)


def named(op, a, b, c, kind="f32"):
    types = [f"memref<{'x'.join(map(str, x.shape))}x{kind}>" if x.ndim else f"memref<{kind}>" for x in (a, b, c)]
    segments = "{operandSegmentSizes = array<i32: 2, 1>}"
    text = f'"linalg.{op}"(%a, %b, %c) {segments} : ({", ".join(types)}) -> ()'
    return ran(text, dict(zip("abc", zip(types, (a, b, c), strict=True), strict=True)))[0, 0]


@pytest.mark.parametrize(
    ("op", "a", "b", "c", "expected"),
    [
        ("matmul", (4, 6), (6, 5), (4, 5), "mk,kn->mn"),
        ("batch_matmul", (2, 4, 6), (2, 6, 5), (2, 4, 5), "bmk,bkn->bmn"),
        ("matvec", (4, 6), (6,), (4,), "mk,k->m"),
        ("vecmat", (6,), (6, 5), (5,), "k,kn->n"),
        ("dot", (6,), (6,), (), "k,k->"),
        ("matmul_transpose_b", (4, 6), (5, 6), (4, 5), "mk,nk->mn"),
        ("mmt4d", (2, 3, 4, 6), (5, 3, 7, 6), (2, 5, 4, 7), "mkrs,nkts->mnrt"),
    ],
)
def test_named_contractions(op, a, b, c, expected):
    x, y, z = bf16(*a), bf16(*b), bf16(*c)
    np.testing.assert_allclose(named(op, x, y, z), np.einsum(expected, x, y) + z, rtol=1e-5, atol=1e-5)


def test_a_matmul_of_small_integers_is_exact_and_wraps_in_its_accumulator():
    a, b = (rng.integers(-128, 128, (16, 16), dtype=np.int8) for _ in range(2))
    text = "linalg.matmul ins(%a, %b : memref<16x16xi8>, memref<16x16xi8>) outs(%c : memref<16x16xi32>)"
    got = ran(text, {"a": ("memref<16x16xi8>", a), "b": ("memref<16x16xi8>", b), "c": ("memref<16x16xi32>", 1)})
    np.testing.assert_array_equal(got[0, 0], a.astype(int) @ b.astype(int) + 1)


def test_convolutions_with_strides_and_dilations():
    image, kernel = bf16(1, 3, 9, 8), bf16(2, 3, 3, 2)
    expected = np.zeros((1, 2, 3, 6), np.float32)
    for f in range(2):
        for oh in range(3):
            for ow in range(6):
                window = image[0, :, oh * 2 : oh * 2 + 5 : 2, ow : ow + 3 : 2]
                expected[0, f, oh, ow] = (window * kernel[f]).sum()
    text = """linalg.conv_2d_nchw_fchw {dilations = dense<2> : tensor<2xi64>, strides = dense<[2, 1]> : tensor<2xi64>}
      ins(%a, %b : memref<1x3x9x8xf32>, memref<2x3x3x2xf32>) outs(%c : memref<1x2x3x6xf32>)"""
    got = ran(
        text,
        {"a": ("memref<1x3x9x8xf32>", image), "b": ("memref<2x3x3x2xf32>", kernel), "c": ("memref<1x2x3x6xf32>", 0)},
    )
    np.testing.assert_allclose(got[0, 0], expected, rtol=1e-5, atol=1e-5)


def test_pooling_takes_the_largest_of_each_window():
    image = bf16(1, 2, 6, 6)
    text = """linalg.pooling_nchw_max {dilations = dense<1> : vector<2xi64>, strides = dense<2> : vector<2xi64>}
      ins(%a, %b : memref<1x2x6x6xf32>, memref<2x2xf32>) outs(%c : memref<1x2x3x3xf32>)"""
    got = ran(
        text, {"a": ("memref<1x2x6x6xf32>", image), "b": ("memref<2x2xf32>", 0), "c": ("memref<1x2x3x3xf32>", -np.inf)}
    )
    np.testing.assert_array_equal(got[0, 0], image.reshape(1, 2, 3, 2, 3, 2).max(axis=(3, 5)))


ELEMENTWISE = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
}


@pytest.mark.parametrize("op", ELEMENTWISE)
def test_named_elementwise_ops_on_bf16_integers_and_in_place(op):
    a, b = bf16(5, 3), bf16(5, 3)
    text = '"linalg.{}"(%a, %b, %b) {{operandSegmentSizes = array<i32: 2, 1>}} : ({t}, {t}, {t}) -> ()'
    got = ran(
        text.format(op, t="memref<5x3xbf16>"), {"a": ("memref<5x3xbf16>", a), "b": ("memref<5x3xbf16>", b)}, name="b"
    )
    np.testing.assert_array_equal(got[0, 0], rounded(ELEMENTWISE[op](a, b)))
    x, y = (rng.integers(1, 100, (5, 3), dtype=np.int8) for _ in range(2))
    got = ran(text.format(op, t="memref<5x3xi8>"), {"a": ("memref<5x3xi8>", x), "b": ("memref<5x3xi8>", y)}, name="b")
    wide = x.astype(int) // y if op == "div" else ELEMENTWISE[op](x.astype(int), y)
    np.testing.assert_array_equal(got[0, 0], wide.astype(np.int8))


def test_unary_named_ops_and_the_cores_exp_on_bf16():
    a = np.abs(bf16(8)) + 0.5
    body = "linalg.{} ins(%a : memref<8xbf16>) outs(%c : memref<8xbf16>)"
    arguments = {"a": ("memref<8xbf16>", rounded(a)), "c": ("memref<8xbf16>", 0)}
    got = ran(body.format("exp"), arguments)
    np.testing.assert_array_equal(got[0, 0], rounded(Numerics().exp(rounded(a))))
    np.testing.assert_array_equal(ran(body.format("sqrt"), arguments)[0, 0], rounded(np.sqrt(rounded(a))))


def test_fill_and_copy_convert_to_the_targets_type():
    got = ran(
        "linalg.fill ins(%v : f32) outs(%c : memref<2x2xbf16>)",
        {"v": ("f32", np.float32(1.001)), "c": ("memref<2x2xbf16>", 0)},
    )
    assert (got == 1.0).all()
    lanes = np.float32([[1], [2]])
    got = ran(
        "linalg.fill ins(%v : f32) outs(%c : memref<3xf32>)",
        {"v": ("f32", lanes), "c": ("memref<3xf32>", 0)},
        lanes=(2, 1),
    )
    np.testing.assert_array_equal(got[:, 0], [[1] * 3, [2] * 3])
    got = ran(
        "linalg.copy ins(%a : memref<3xf32>) outs(%c : memref<3xf32>)",
        {"a": ("memref<3xf32>", [1, 2, 3]), "c": ("memref<3xf32>", 0)},
    )
    np.testing.assert_array_equal(got[0, 0], [1, 2, 3])


def test_transpose_and_broadcast():
    a = bf16(2, 3)
    got = ran(
        "linalg.transpose ins(%a : memref<2x3xf32>) outs(%c : memref<3x2xf32>) permutation = [1, 0]",
        {"a": ("memref<2x3xf32>", a), "c": ("memref<3x2xf32>", 0)},
    )
    np.testing.assert_array_equal(got[0, 0], a.T)
    got = ran(
        "linalg.broadcast ins(%a : memref<2x3xf32>) outs(%c : memref<2x4x3xf32>) dimensions = [1]",
        {"a": ("memref<2x3xf32>", a), "c": ("memref<2x4x3xf32>", 0)},
    )
    np.testing.assert_array_equal(got[0, 0], np.broadcast_to(a[:, None], (2, 4, 3)))


def test_pack_and_unpack_are_inverse():
    a = bf16(16, 24)
    got = ran(
        "linalg.pack %a outer_dims_perm = [1, 0] inner_dims_pos = [0, 1] inner_tiles = [8, 4] into %c"
        " : memref<16x24xf32> -> memref<6x2x8x4xf32>",
        {"a": ("memref<16x24xf32>", a), "c": ("memref<6x2x8x4xf32>", 0)},
    )
    np.testing.assert_array_equal(got[0, 0], a.reshape(2, 8, 6, 4).transpose(2, 0, 1, 3))
    back = ran(
        "linalg.unpack %a outer_dims_perm = [1, 0] inner_dims_pos = [0, 1] inner_tiles = [8, 4] into %c"
        " : memref<6x2x8x4xf32> -> memref<16x24xf32>",
        {"a": ("memref<6x2x8x4xf32>", got[0, 0]), "c": ("memref<16x24xf32>", 0)},
    )
    np.testing.assert_array_equal(back[0, 0], a)
    twice = ran(
        "linalg.pack %a outer_dims_perm = [0, 1, 3, 2] inner_dims_pos = [2, 3] inner_tiles = [8, 8] into %c"
        " : memref<1x1x16x24xf32> -> memref<1x1x3x2x8x8xf32>",
        {"a": ("memref<1x1x16x24xf32>", a[None, None]), "c": ("memref<1x1x3x2x8x8xf32>", 0)},
    )
    np.testing.assert_array_equal(twice[0, 0, 0, 0], a.reshape(2, 8, 3, 8).transpose(2, 0, 1, 3))


def test_reduce_by_dimension():
    a = bf16(2, 3, 4)
    got = ran(
        """linalg.reduce ins(%a : memref<2x3x4xf32>) outs(%c : memref<2x4xf32>) dimensions = [1]
          (%x: f32, %z: f32) {
            %q = arith.addf %x, %z : f32
            linalg.yield %q : f32
          }""",
        {"a": ("memref<2x3x4xf32>", a), "c": ("memref<2x4xf32>", 1.0)},
    )
    np.testing.assert_allclose(got[0, 0], a.sum(1) + 1, rtol=1e-6)


def test_shapes_that_do_not_fit_and_tensors_are_refused_by_name():
    with pytest.raises(Fault, match=r"linalg\.matmul: loop d\d+ runs to 6 by one operand and to 7"):
        named("matmul", bf16(4, 6), bf16(7, 5), bf16(4, 5))
    with pytest.raises(Fault, match="tensors"):
        run_block(
            "%r = linalg.add ins(%a, %a : tensor<2xf32>, tensor<2xf32>) outs(%a : tensor<2xf32>) -> tensor<2xf32>",
            {"a": ("tensor<2xf32>", vector([1, 2]))},
        )
