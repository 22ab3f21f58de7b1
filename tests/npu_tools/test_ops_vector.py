"""vector ops: memory with maps, masks and bounds, registers, reductions and contractions, per lane and shared."""

import ml_dtypes
import numpy as np
import pytest

from npu_tools.air import parse_program
from npu_tools.emulator.blockfloat import quantise
from npu_tools.emulator.numerics import Numerics
from npu_tools.emulator.ops.fused import stays_in_accumulator
from npu_tools.emulator.types import Fault, LanesDiffer
from tests.npu_tools.one_block import run_block, vector

M = np.arange(4 * 6, dtype=np.float32).reshape(4, 6)


def one(body, arguments, **options):
    return run_block(body, arguments, **options)["r"]


def read(text, i, j, kind="vector<3xf32>", **options):
    body = (
        f"%pad = arith.constant -1.0 : f32\n%r = vector.transfer_read %m[%i, %j], %pad {text} : memref<4x6xf32>, {kind}"
    )
    return one(body, {"m": ("memref<4x6xf32>", M), "i": ("index", i), "j": ("index", j)}, **options)


def test_a_transfer_reads_the_innermost_dimensions_and_keeps_its_own_copy():
    args = {"m": ("memref<4x6xf32>", M), "i": ("index", 1)}
    got = run_block(
        """%z = arith.constant 0.0 : f32
        %r = vector.transfer_read %m[%i, %i], %z {in_bounds = [true]} : memref<4x6xf32>, vector<3xf32>
        %v = vector.broadcast %z : f32 to vector<3xf32>
        vector.transfer_write %v, %m[%i, %i] {in_bounds = [true]} : vector<3xf32>, memref<4x6xf32>""",
        args,
    )
    np.testing.assert_array_equal(got["r"], vector([7, 8, 9]))
    np.testing.assert_array_equal(got["m"][0, 0, 1], [6, 0, 0, 0, 10, 11])


def test_outside_the_memref_a_read_gives_padding_and_a_write_is_dropped():
    np.testing.assert_array_equal(read("", 2, 4), vector([16, 17, -1]))
    np.testing.assert_array_equal(read("", 2, 7), vector([-1, -1, -1]))
    with pytest.raises(Fault, match="4 to 6"):
        read("{in_bounds = [true]}", 2, 4)
    got = run_block(
        "vector.transfer_write %v, %m[%i, %i] : vector<3xf32>, memref<4x6xf32>",
        {"m": ("memref<4x6xf32>", M), "v": ("vector<3xf32>", vector([50, 51, 52])), "i": ("index", 3)},
    )
    np.testing.assert_array_equal(got["m"][0, 0, 3], [18, 19, 20, 50, 51, 52])


def test_permutation_maps_turn_and_repeat():
    turned = read("{in_bounds = [true, true], permutation_map = affine_map<(a, b) -> (b, a)>}", 0, 1, "vector<3x4xf32>")
    np.testing.assert_array_equal(turned[0, 0], M[:, 1:4].T)
    column = read("{in_bounds = [true], permutation_map = affine_map<(a, b) -> (a)>}", 0, 2, "vector<4xf32>")
    np.testing.assert_array_equal(column[0, 0], M[:, 2])
    repeated = read(
        "{in_bounds = [true, true], permutation_map = affine_map<(a, b) -> (0, b)>}", 1, 1, "vector<2x3xf32>"
    )
    np.testing.assert_array_equal(repeated[0, 0], [M[1, 1:4]] * 2)
    cut = read("{in_bounds = [false, false], permutation_map = affine_map<(a, b) -> (b, a)>}", 2, 4, "vector<3x4xf32>")
    np.testing.assert_array_equal(cut[0, 0], [[16, 22, -1, -1], [17, 23, -1, -1], [-1] * 4])


def test_a_permuted_write_is_the_reverse_of_the_read():
    values = np.float32([[1, 2], [3, 4], [5, 6]])
    got = run_block(
        "vector.transfer_write %v, %m[%i, %i] {in_bounds = [true, true], permutation_map = affine_map<(a, b) -> (b, a)>}"
        " : vector<3x2xf32>, memref<4x6xf32>",
        {"m": ("memref<4x6xf32>", M), "v": ("vector<3x2xf32>", vector(values)), "i": ("index", 1)},
    )
    np.testing.assert_array_equal(got["m"][0, 0, 1:3, 1:4], values.T)


def test_lanes_read_and_write_at_their_own_places():
    i = np.array([[0], [2]])
    got = read("{in_bounds = [true]}", i, 1, lanes=(2, 1))
    np.testing.assert_array_equal(got[:, 0], [M[0, 1:4], M[2, 1:4]])
    with pytest.raises(LanesDiffer):
        read("", 0, np.array([[1], [5]]), lanes=(2, 1))


MASKED = {
    "m": ("memref<6xf32>", M[0]),
    "i": ("index", 4),
    "n": ("index", 2),
    "p": ("vector<4xf32>", vector([9, 9, 9, 9])),
}


def test_masks_keep_what_lies_outside_untouched():
    got = run_block(
        """%k = vector.create_mask %n : vector<4xi1>
        %r = "vector.maskedload"(%m, %i, %k, %p) : (memref<6xf32>, index, vector<4xi1>, vector<4xf32>) -> vector<4xf32>
        "vector.maskedstore"(%m, %i, %k, %p) : (memref<6xf32>, index, vector<4xi1>, vector<4xf32>) -> ()""",
        MASKED,
    )
    np.testing.assert_array_equal(got["r"], vector([4, 5, 9, 9]))
    np.testing.assert_array_equal(got["m"][0, 0], [0, 1, 2, 3, 9, 9])
    body = """%k = vector.create_mask %n : vector<4xi1>
        %z = arith.constant -1.0 : f32
        %r = vector.transfer_read %m[%i], %z, %k : memref<6xf32>, vector<4xf32>
        vector.transfer_write %p, %m[%i], %k : vector<4xf32>, memref<6xf32>"""
    got = run_block(body, {**MASKED, "n": ("index", 1)})
    np.testing.assert_array_equal(got["r"], vector([4, -1, -1, -1]))
    np.testing.assert_array_equal(got["m"][0, 0], [0, 1, 2, 3, 9, 5])


def test_masks_per_lane():
    n = np.array([[1, 3]])
    got = run_block("%k = vector.create_mask %n : vector<4xi1>", {"n": ("index", n)})["k"]
    np.testing.assert_array_equal(got[0], [[True, False, False, False], [True, True, True, False]])
    text = '%k = "vector.constant_mask"() {mask_dim_sizes = array<i64: 1, 2>} : () -> vector<2x3xi1>'
    np.testing.assert_array_equal(run_block(text, {})["k"][0, 0], [[True, True, False], [False] * 3])


def test_load_store_and_gather():
    got = run_block(
        """%r = vector.load %m[%i, %j] : memref<4x6xf32>, vector<2xf32>
        vector.store %r, %m[%j, %i] : memref<4x6xf32>, vector<2xf32>""",
        {"m": ("memref<4x6xf32>", M), "i": ("index", 1), "j": ("index", 3)},
    )
    np.testing.assert_array_equal(got["r"], vector([9, 10]))
    np.testing.assert_array_equal(got["m"][0, 0, 3, :4], [18, 9, 10, 21])
    gathered = one(
        '%r = "vector.gather"(%m, %z, %x, %k, %p) : (memref<6xf32>, index, vector<3xindex>, vector<3xi1>, vector<3xf32>)'
        " -> vector<3xf32>",
        {
            "m": ("memref<6xf32>", M[1]),
            "z": ("index", 1),
            "x": ("vector<3xindex>", vector([4, 0, 99], np.int64)),
            "k": ("vector<3xi1>", vector([1, 1, 0], np.bool_)),
            "p": ("vector<3xf32>", vector([-1, -1, -1])),
        },
    )
    np.testing.assert_array_equal(gathered, vector([11, 7, -1]))


def test_broadcasts_of_scalars_lanes_and_vectors():
    uniform = one("%r = vector.broadcast %a : f32 to vector<2x3xf32>", {"a": ("f32", np.float32(2))})
    assert uniform.shape == (1, 1, 2, 3)
    lanes = np.float32([[1], [2]])
    got = one("%r = vector.broadcast %a : f32 to vector<3xf32>", {"a": ("f32", lanes)})
    np.testing.assert_array_equal(got[:, 0], [[1, 1, 1], [2, 2, 2]])
    rows = one(
        "%r = vector.broadcast %a : vector<3xf32> to vector<2x3xf32>", {"a": ("vector<3xf32>", vector([1, 2, 3]))}
    )
    np.testing.assert_array_equal(rows[0, 0], [[1, 2, 3]] * 2)


V = vector(np.arange(12).reshape(3, 4))
VA = {"a": ("vector<3x4xf32>", V)}


def test_shapes_slices_and_transposes():
    np.testing.assert_array_equal(
        one("%r = vector.shape_cast %a : vector<3x4xf32> to vector<2x6xf32>", VA)[0, 0], np.arange(12).reshape(2, 6)
    )
    np.testing.assert_array_equal(
        one("%r = vector.transpose %a, [1, 0] : vector<3x4xf32> to vector<4x3xf32>", VA)[0, 0], V[0, 0].T
    )
    cut = one(
        "%r = vector.extract_strided_slice %a {offsets = [1, 1], sizes = [2, 2], strides = [1, 1]}"
        " : vector<3x4xf32> to vector<2x2xf32>",
        VA,
    )
    np.testing.assert_array_equal(cut[0, 0], [[5, 6], [9, 10]])
    put = one(
        "%r = vector.insert_strided_slice %b, %a {offsets = [1, 2], strides = [1]} : vector<2xf32> into vector<3x4xf32>",
        {**VA, "b": ("vector<2xf32>", vector([-1, -2]))},
    )
    np.testing.assert_array_equal(put[0, 0, 1], [4, 5, -1, -2])


def test_extract_and_insert_at_fixed_and_moving_places():
    assert one("%r = vector.extract %a[1, 2] : f32 from vector<3x4xf32>", VA) == 6
    got = one(
        "%r = vector.extract %a[%i] : vector<4xf32> from vector<3x4xf32>", {**VA, "i": ("index", np.array([[0], [2]]))}
    )
    np.testing.assert_array_equal(got[:, 0], [V[0, 0, 0], V[0, 0, 2]])
    scalars = one(
        "%r = vector.extract %a[%i, 1] : f32 from vector<3x4xf32>", {**VA, "i": ("index", np.array([[0], [2]]))}
    )
    np.testing.assert_array_equal(scalars, [[1], [9]])
    put = one(
        "%r = vector.insert %b, %a[1] : vector<4xf32> into vector<3x4xf32>",
        {**VA, "b": ("vector<4xf32>", vector([0, 0, 0, 1]))},
    )
    np.testing.assert_array_equal(put[0, 0, 1], [0, 0, 0, 1])
    assert V[0, 0, 1, 0] == 4
    moving = one(
        "%r = vector.insert %b, %a[%i, 0] : f32 into vector<3x4xf32>",
        {**VA, "b": ("f32", np.float32(-9)), "i": ("index", np.array([[0], [2]]))},
    )
    assert (moving[0, 0, 0, 0], moving[1, 0, 2, 0], moving[1, 0, 0, 0]) == (-9, -9, 0)


def test_shuffles_interleaving_and_elements():
    ab = {"a": ("vector<2xi32>", vector([1, 2], np.int32)), "b": ("vector<2xi32>", vector([3, 4], np.int32))}
    got = one(
        '%r = "vector.shuffle"(%a, %b) {mask = array<i64: 3, 0, 2>} : (vector<2xi32>, vector<2xi32>) -> vector<3xi32>',
        ab,
    )
    np.testing.assert_array_equal(got[0, 0], [4, 1, 3])
    got = one('%r = "vector.interleave"(%a, %b) : (vector<2xi32>, vector<2xi32>) -> vector<4xi32>', ab)
    np.testing.assert_array_equal(got[0, 0], [1, 3, 2, 4])
    got = run_block('%e, %o = "vector.deinterleave"(%a) : (vector<2xi32>) -> (vector<1xi32>, vector<1xi32>)', ab)
    assert (got["e"].item(), got["o"].item()) == (1, 2)
    got = run_block(
        """%r = "vector.from_elements"(%x, %x) : (i32, i32) -> vector<2xi32>
        %p, %q = "vector.to_elements"(%a) : (vector<2xi32>) -> (i32, i32)
        %s = "vector.step"() : () -> vector<4xindex>""",
        {**ab, "x": ("i32", np.int32(7))},
    )
    np.testing.assert_array_equal(got["r"], vector([7, 7], np.int32))
    assert (got["p"], got["q"]) == (1, 2)
    np.testing.assert_array_equal(got["s"], vector([0, 1, 2, 3], np.int64))


def test_bitcasts_between_widths_are_little_endian():
    words = np.uint32([0x40003F80]).astype(np.int32)
    got = one(
        "%r = vector.bitcast %a : vector<1xi32> to vector<2xbf16>", {"a": ("vector<1xi32>", vector(words, np.int32))}
    )
    np.testing.assert_array_equal(got, vector([1.0, 2.0]))
    back = one("%r = vector.bitcast %a : vector<2xbf16> to vector<1xi32>", {"a": ("vector<2xbf16>", got)})
    np.testing.assert_array_equal(back[0, 0], words)
    bytes_ = one(
        "%r = vector.bitcast %a : vector<1xi32> to vector<4xi8>", {"a": ("vector<1xi32>", vector(words, np.int32))}
    )
    np.testing.assert_array_equal(bytes_[0, 0], np.uint8([0x80, 0x3F, 0x00, 0x40]).astype(np.int8))
    with pytest.raises(Fault, match="whole bytes"):
        one("%r = vector.bitcast %a : vector<2xi4> to vector<1xi8>", {"a": ("vector<2xi4>", vector([1, 2], np.int8))})


REDUCTIONS = {
    "add": np.sum,
    "mul": np.prod,
    "minsi": np.min,
    "maxsi": np.max,
    "and": np.bitwise_and.reduce,
    "or": np.bitwise_or.reduce,
    "xor": np.bitwise_xor.reduce,
}


@pytest.mark.parametrize("kind", REDUCTIONS)
def test_integer_reductions_with_an_accumulator(kind):
    values = np.int32([5, -3, 7, 2])
    got = one(
        f"%r = vector.reduction <{kind}>, %a, %c : vector<4xi32> into i32",
        {"a": ("vector<4xi32>", vector(values, np.int32)), "c": ("i32", np.int32(6))},
    )
    assert got == REDUCTIONS[kind](np.append(values, 6))
    assert got.dtype == np.int32


def test_unsigned_and_wrapping_reductions():
    a = {"a": ("vector<3xi8>", vector([-1, 100, 100], np.int8))}
    assert one("%r = vector.reduction <maxui>, %a : vector<3xi8> into i8", a) == -1
    assert one("%r = vector.reduction <minui>, %a : vector<3xi8> into i8", a) == 100
    assert one("%r = vector.reduction <add>, %a : vector<3xi8> into i8", a) == -57


def test_bf16_sums_run_in_float32_and_round_once():
    values = np.random.default_rng(0).standard_normal((2, 1, 64)).astype(ml_dtypes.bfloat16)
    wide = values.astype(np.float32)
    got = one("%r = vector.reduction <add>, %a : vector<64xbf16> into bf16", {"a": ("vector<64xbf16>", wide)})
    np.testing.assert_array_equal(got, wide.sum(-1).astype(ml_dtypes.bfloat16).astype(np.float32))
    assert got.shape == (2, 1)
    np.testing.assert_array_equal(
        one("%r = vector.reduction <maximumf>, %a : vector<64xbf16> into bf16", {"a": ("vector<64xbf16>", wide)}),
        wide.max(-1),
    )


def test_multi_reduction_over_some_dimensions():
    got = one(
        "%r = vector.multi_reduction <add>, %a, %c [0] : vector<3x4xf32> to vector<4xf32>",
        {**VA, "c": ("vector<4xf32>", vector([1, 1, 1, 1]))},
    )
    np.testing.assert_array_equal(got[0, 0], V[0, 0].sum(0) + 1)


def test_fma_rounds_once_and_outer_products_add_up():
    a, b, c = (round_bf16_like(seed, 32) for seed in (1, 2, 3))
    got = one(
        "%r = vector.fma %a, %b, %c : vector<32xbf16>",
        {n: ("vector<32xbf16>", v) for n, v in zip("abc", (a, b, c), strict=True)},
    )
    exact = (a.astype(np.float64) * b + c).astype(np.float32)
    np.testing.assert_array_equal(got, exact.astype(ml_dtypes.bfloat16).astype(np.float32))
    outer = one(
        '%r = "vector.outerproduct"(%a, %b, %c) {kind = #vector.kind<add>} : (vector<2xf32>, vector<3xf32>, vector<2x3xf32>)'
        " -> vector<2x3xf32>",
        {
            "a": ("vector<2xf32>", vector([1, 2])),
            "b": ("vector<3xf32>", vector([1, 10, 100])),
            "c": ("vector<2x3xf32>", vector(np.ones((2, 3)))),
        },
    )
    np.testing.assert_array_equal(outer[0, 0], [[2, 11, 101], [3, 21, 201]])


def round_bf16_like(seed, *shape):
    return np.random.default_rng(seed).standard_normal((1, 1, *shape)).astype(ml_dtypes.bfloat16).astype(np.float32)


CONTRACT = """
#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (k, n)>
#c = affine_map<(m, n, k) -> (m, n)>
"""


def contraction(element, acc, a, b, c, m=8, n=8, k=16, **options):
    body = (
        '%r = vector.contract {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"],'
        f" kind = #vector.kind<add>}} %a, %b, %c : vector<{m}x{k}x{element}>, vector<{k}x{n}x{element}>"
        f" into vector<{m}x{n}x{acc}>"
    )
    arguments = {
        "a": (f"vector<{m}x{k}x{element}>", a),
        "b": (f"vector<{k}x{n}x{element}>", b),
        "c": (f"vector<{m}x{n}x{acc}>", c),
    }
    return one(body, arguments, head=CONTRACT, **options)


def test_a_bf16_contraction_is_the_matrix_units():
    a, b, c = round_bf16_like(1, 8, 16), round_bf16_like(2, 16, 8), round_bf16_like(3, 8, 8)
    expected = quantise(a, -1) @ quantise(b, -2) + c
    np.testing.assert_array_equal(contraction("bf16", "f32", a, b, c), expected)
    np.testing.assert_array_equal(
        contraction("bf16", "bf16", a, b, c), expected.astype(ml_dtypes.bfloat16).astype(np.float32)
    )
    np.testing.assert_array_equal(contraction("bf16", "f32", a, b, c, numerics=Numerics("f32")), a @ b + c)
    np.testing.assert_array_equal(contraction("f32", "f32", a, b, c), a @ b + c)


def test_a_contraction_with_lanes_shared_along_one_axis():
    a = np.random.default_rng(0).standard_normal((3, 1, 8, 16)).astype(np.float32)
    b = np.random.default_rng(1).standard_normal((1, 2, 16, 8)).astype(np.float32)
    got = contraction("f32", "f32", a, b, np.zeros((1, 1, 8, 8), np.float32))
    assert got.shape == (3, 2, 8, 8)
    np.testing.assert_allclose(got[2, 1], a[2, 0] @ b[0, 1], rtol=1e-5, atol=1e-6)


def test_a_contraction_of_values_extended_from_bf16_goes_to_the_matrix_unit():
    a, b = round_bf16_like(1, 8, 16), round_bf16_like(2, 16, 8)
    body = """%x = arith.extf %a : vector<8x16xbf16> to vector<8x16xf32>
    %y = arith.extf %b : vector<16x8xbf16> to vector<16x8xf32>
    %r = vector.contract {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"],
      kind = #vector.kind<add>} %x, %y, %c : vector<8x16xf32>, vector<16x8xf32> into vector<8x8xf32>"""
    arguments = {
        "a": ("vector<8x16xbf16>", a),
        "b": ("vector<16x8xbf16>", b),
        "c": ("vector<8x8xf32>", vector(np.zeros((8, 8)))),
    }
    np.testing.assert_array_equal(one(body, arguments, head=CONTRACT), quantise(a, -1) @ quantise(b, -2))


def test_integer_contractions_are_exact_and_wrap():
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-128, 128, size=(1, 1, *s), dtype=np.int8) for s in ((8, 16), (16, 8)))
    c = rng.integers(-5, 5, size=(1, 1, 8, 8), dtype=np.int32)
    exact = a[0, 0].astype(np.int64) @ b[0, 0].astype(np.int64)
    np.testing.assert_array_equal(contraction("i8", "i32", a, b, c)[0, 0], exact + c[0, 0])
    wrapped = contraction("i8", "i8", a, b, c.astype(np.int8))
    np.testing.assert_array_equal(wrapped[0, 0], (exact + c[0, 0]).astype(np.int8))


def test_a_vector_times_a_matrix_uses_no_block_float():
    b, x = round_bf16_like(2, 16, 8), round_bf16_like(4, 16)
    body = (
        "%r = vector.contract {indexing_maps = [affine_map<(n, k) -> (k)>, affine_map<(n, k) -> (k, n)>,"
        ' affine_map<(n, k) -> (n)>], iterator_types = ["parallel", "reduction"], kind = #vector.kind<add>} %x, %b, %c'
        " : vector<16xbf16>, vector<16x8xbf16> into vector<8xf32>"
    )
    got = one(
        body, {"x": ("vector<16xbf16>", x), "b": ("vector<16x8xbf16>", b), "c": ("vector<8xf32>", vector(np.zeros(8)))}
    )
    np.testing.assert_allclose(got[0, 0], x[0, 0] @ b[0, 0], rtol=1e-6, atol=1e-6)


def test_contractions_with_other_kinds_are_refused():
    with pytest.raises(Fault, match=r"vector\.contract.*maximumf"):
        one(
            '%r = vector.contract {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"],'
            " kind = #vector.kind<maximumf>} %a, %a, %a : vector<8x8xf32>, vector<8x8xf32> into vector<8x8xf32>",
            {"a": ("vector<8x8xf32>", vector(np.zeros((8, 8))))},
            head=CONTRACT,
        )


SCRATCH = """%z = arith.constant 0.0 : bf16
  %i = arith.constant 0 : index
  %b = memref.alloc() : memref<16xbf16, 2>
  %p = arith.mulf %x, %x : vector<16xbf16>
  vector.transfer_write %p, %b[%i] {{in_bounds = [true]}} : vector<16xbf16>, memref<16xbf16, 2>
  %q = vector.transfer_read %b[%i], %z {{in_bounds = [true]}} : memref<16xbf16, 2>, vector<16xbf16>
  {more}"""


@pytest.mark.parametrize(
    ("more", "kept"),
    [
        ("%r = arith.extf %q : vector<16xbf16> to vector<16xf32>", True),
        ("%r = arith.addf %q, %x : vector<16xbf16>", True),
        ("%r = arith.mulf %q, %x : vector<16xbf16>", False),
        (
            "%r = arith.extf %q : vector<16xbf16> to vector<16xf32>\n"
            "%s = vector.transfer_read %b[%i], %z {in_bounds = [true]} : memref<16xbf16, 2>, vector<16xbf16>",
            False,
        ),
    ],
)
def test_a_product_written_out_and_read_back_to_be_added_to_is_not_rounded(more, kept):
    text = f"func.func @f(%x: vector<16xbf16>) {{\n{SCRATCH.format(more=more)}\nreturn\n}}"
    program = parse_program(text, name="scratch.mlir")
    product = next(op for op in program.module.walk() if op.name == "arith.mulf")
    assert stays_in_accumulator(product) is kept


def test_a_product_that_is_added_to_is_not_rounded_and_one_that_is_stored_is():
    x, y = round_bf16_like(1, 16), round_bf16_like(2, 16)
    args = {"x": ("vector<16xbf16>", x), "y": ("vector<16xbf16>", y)}
    body = "%p = arith.mulf %x, %y : vector<16xbf16>\n%r = arith.addf %p, %x : vector<16xbf16>"
    exact = (x * y + x).astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(one(body, args), exact)
    twice = "%p = arith.mulf %x, %y : vector<16xbf16>\n%r = arith.addf %p, %p : vector<16xbf16>"
    rounded = (x * y).astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(one(twice, args), rounded * 2)
