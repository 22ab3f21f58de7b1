"""arith, math and index ops: MLIR's semantics on scalars, lanes and vectors, against Python, numpy and ml_dtypes."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npu_tools.emulator.numerics import Numerics
from npu_tools.emulator.types import Fault, LanesDiffer
from tests.npu_tools.one_block import run_block, vector


def binary(op, kind, a, b, **options):
    text = f'%r = "{op}"(%a, %b) : ({kind}, {kind}) -> {kind}'
    return run_block(text, {"a": (kind, a), "b": (kind, b)}, **options)["r"]


def wrap(value, bits):
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def trunc_div(a, b):
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


PYTHON = {
    "addi": lambda a, b, n: a + b,
    "subi": lambda a, b, n: a - b,
    "muli": lambda a, b, n: a * b,
    "andi": lambda a, b, n: a & b,
    "ori": lambda a, b, n: a | b,
    "xori": lambda a, b, n: a ^ b,
    "maxsi": lambda a, b, n: max(a, b),
    "minsi": lambda a, b, n: min(a, b),
    "maxui": lambda a, b, n: max(a % 2**n, b % 2**n),
    "minui": lambda a, b, n: min(a % 2**n, b % 2**n),
    "divsi": lambda a, b, n: trunc_div(a, b),
    "remsi": lambda a, b, n: a - trunc_div(a, b) * b,
    "floordivsi": lambda a, b, n: a // b,
    "ceildivsi": lambda a, b, n: -(-a // b),
    "divui": lambda a, b, n: (a % 2**n) // (b % 2**n),
    "remui": lambda a, b, n: (a % 2**n) % (b % 2**n),
    "ceildivui": lambda a, b, n: -(-(a % 2**n) // (b % 2**n)),
    "shli": lambda a, b, n: a << (b % 2**n) if b % 2**n < n else 0,
    "shrui": lambda a, b, n: (a % 2**n) >> (b % 2**n) if b % 2**n < n else 0,
    "shrsi": lambda a, b, n: a >> min(b % 2**n, n),
}
HELD = {4: np.int8, 8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}


@pytest.mark.parametrize("op", PYTHON)
@pytest.mark.parametrize("bits", [4, 8, 32, 64])
def test_integer_ops_agree_with_python_and_wrap(op, bits):
    rng = np.random.default_rng(len(op) * bits)
    ends = [-(1 << (bits - 1)), (1 << (bits - 1)) - 1, 0, 1, -1, 3]
    a = [*ends, *(int(n) for n in rng.integers(-(1 << (bits - 1)), 1 << (bits - 1), 26, dtype=np.int64))]
    b = [*reversed(ends), *(int(n) for n in rng.integers(-(1 << (bits - 1)), 1 << (bits - 1), 26, dtype=np.int64))]
    if op.startswith(("div", "rem", "floor", "ceil")):
        b = [n or 7 for n in b]
    expected = [wrap(PYTHON[op](x, y, bits), bits) for x, y in zip(a, b, strict=True)]
    kind = f"vector<32xi{bits}>"
    got = binary(f"arith.{op}", kind, vector(a, HELD[bits]), vector(b, HELD[bits]))
    assert got.dtype == HELD[bits]
    assert [int(n) for n in got[0, 0]] == expected
    scalars = [
        binary(f"arith.{op}", f"i{bits}", HELD[bits](x), HELD[bits](y)) for x, y in list(zip(a, b, strict=True))[:7]
    ]
    assert [int(n) for n in scalars] == expected[:7]
    assert all(type(n) is HELD[bits] for n in scalars)


@pytest.mark.parametrize(
    "op",
    ["addi", "subi", "muli", "divsi", "remsi", "floordivsi", "ceildivsi", "divui", "remui", "maxsi", "shli", "shrsi"],
)
def test_index_ops_give_python_ints_and_lane_arrays_alike(op):
    lanes = np.array([[7], [12], [5]])
    expected = [PYTHON[op](int(n), 3, 64) for n in lanes.flat]
    assert [binary(f"arith.{op}", "index", int(n), 3) for n in lanes.flat] == expected
    assert type(binary(f"arith.{op}", "index", 7, 3)) is int
    got = binary(f"arith.{op}", "index", lanes, 3)
    assert got.shape == (3, 1)
    assert got.dtype == np.int64
    assert [int(n) for n in got.flat] == expected


def test_division_by_zero_is_a_fault_with_a_remedy():
    for op in ("divsi", "divui", "remsi", "remui", "floordivsi", "ceildivsi"):
        with pytest.raises(Fault, match="by zero") as caught:
            binary(f"arith.{op}", "i32", np.int32(1), np.int32(0))
        assert caught.value.code == "division-by-zero"
        assert caught.value.remedy


CMPI = ["eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge"]


@pytest.mark.parametrize("predicate", CMPI)
@pytest.mark.parametrize("bits", [1, 8, 32])
def test_integer_comparisons_read_signs_as_the_predicate_says(predicate, bits):
    values = [0, 1] if bits == 1 else [-(1 << (bits - 1)), -1, 0, 1, (1 << (bits - 1)) - 1]
    pairs = [(a, b) for a in values for b in values]
    held = np.bool_ if bits == 1 else HELD[bits]
    a, b = (vector([p[i] for p in pairs], held) for i in (0, 1))
    kind = f"vector<{len(pairs)}xi{bits}>"
    got = run_block(f"%r = arith.cmpi {predicate}, %a, %b : {kind}", {"a": (kind, a), "b": (kind, b)})["r"]
    signed = [[wrap(n, bits) for n in p] for p in pairs]
    sides = [[n % 2**bits for n in p] for p in pairs] if predicate[0] == "u" else signed
    name = predicate[1:] if predicate[0] in "su" else predicate
    expected = [getattr(x, f"__{name}__")(y) for x, y in sides]
    assert list(got[0, 0]) == expected


CMPF = [
    "false",
    "oeq",
    "ogt",
    "oge",
    "olt",
    "ole",
    "one",
    "ord",
    "ueq",
    "ugt",
    "uge",
    "ult",
    "ule",
    "une",
    "uno",
    "true",
]


@pytest.mark.parametrize("predicate", CMPF)
def test_float_comparisons_with_nan(predicate):
    values = [1.0, 2.0, float("nan"), float("inf")]
    pairs = [(a, b) for a in values for b in values]
    a, b = (vector([p[i] for p in pairs]) for i in (0, 1))
    kind = f"vector<{len(pairs)}xf32>"
    got = run_block(f"%r = arith.cmpf {predicate}, %a, %b : {kind}", {"a": (kind, a), "b": (kind, b)})["r"]

    def expected(x, y):
        unordered = x != x or y != y
        if predicate in ("false", "true", "ord", "uno"):
            return {"false": False, "true": True, "ord": not unordered, "uno": unordered}[predicate]
        if unordered:
            return predicate[0] == "u"
        return getattr(x, f"__{predicate[1:]}__")(y)

    assert list(got[0, 0]) == [expected(x, y) for x, y in pairs]
    assert run_block(
        f"%r = arith.cmpf {predicate}, %a, %b : f32", {"a": ("f32", np.float32(1)), "b": ("f32", np.float32(2))}
    )["r"] == expected(1.0, 2.0)


FLOAT = {"addf": np.add, "subf": np.subtract, "mulf": np.multiply, "divf": np.divide, "remf": np.fmod}


@pytest.mark.parametrize("op", FLOAT)
def test_bf16_ops_round_once_as_ml_dtypes_does(op):
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(512).astype(ml_dtypes.bfloat16) for _ in range(2))
    exact = FLOAT[op](a.astype(np.float32), b.astype(np.float32))
    got = binary(f"arith.{op}", "vector<512xbf16>", vector(a), vector(b))
    np.testing.assert_array_equal(got[0, 0], exact.astype(ml_dtypes.bfloat16).astype(np.float32))
    plain = binary(f"arith.{op}", "vector<512xbf16>", vector(a), vector(b), numerics=Numerics("f32"))
    np.testing.assert_array_equal(plain[0, 0], exact)


def test_float_results_that_overflow_or_divide_by_zero_are_values_not_warnings():
    big = np.float32(3e38)
    assert binary("arith.addf", "f32", big, big) == np.inf
    assert math.isnan(binary("arith.divf", "f32", np.float32(0), np.float32(0)))


def test_maximum_propagates_nan_and_maxnum_ignores_it():
    a, b = vector([np.nan, 1.0]), vector([2.0, np.nan])
    assert np.isnan(binary("arith.maximumf", "vector<2xf32>", a, b)).all()
    np.testing.assert_array_equal(binary("arith.maxnumf", "vector<2xf32>", a, b), vector([2.0, 1.0]))
    assert np.isnan(binary("arith.minimumf", "vector<2xf32>", a, b)).all()
    np.testing.assert_array_equal(binary("arith.minnumf", "vector<2xf32>", a, b), vector([2.0, 1.0]))


def convert(op, source, target, value, **options):
    return run_block(f"%r = arith.{op} %a : {source} to {target}", {"a": (source, value)}, **options)["r"]


def test_conversions_between_integers():
    assert convert("extsi", "i8", "i32", np.int8(-3)) == -3
    assert convert("extui", "i8", "i32", np.int8(-3)) == 253
    assert convert("extui", "i4", "i8", np.int8(-1)) == 15
    assert convert("extsi", "i1", "i32", np.bool_(True)) == -1
    assert convert("extui", "i1", "i32", np.bool_(True)) == 1
    assert convert("trunci", "i32", "i8", np.int32(0x1FF)) == -1
    assert convert("trunci", "i32", "i1", np.int32(2)) == np.bool_(False)
    assert convert("trunci", "i32", "i4", np.int32(9)) == -7
    assert convert("index_cast", "index", "i32", 2**31) == -(2**31)
    assert convert("index_cast", "i32", "index", np.int32(-5)) == -5
    assert type(convert("index_cast", "i32", "index", np.int32(5))) is int
    assert convert("index_castui", "i8", "index", np.int8(-1)) == 255


def test_conversions_between_integers_and_floats():
    assert convert("sitofp", "i8", "f32", np.int8(-3)) == -3.0
    assert convert("uitofp", "i8", "f32", np.int8(-3)) == 253.0
    assert convert("sitofp", "i32", "bf16", np.int32(257)) == 256.0
    assert convert("fptosi", "f32", "i32", np.float32(-2.9)) == -2
    assert convert("fptosi", "f32", "i8", np.float32(1e9)) == 127
    assert convert("fptosi", "f32", "i8", np.float32(np.nan)) == 0
    assert convert("fptoui", "f32", "i8", np.float32(200.5)) == np.int8(-56)
    got = convert("fptosi", "vector<4xbf16>", "vector<4xi32>", vector([1.5, -1.5, 100, -0.5]))
    np.testing.assert_array_equal(got, vector([1, -1, 100, 0], np.int32))


def test_truncf_rounds_and_extf_does_not_touch_its_operand():
    value = vector([1.001, 2.003])
    kept = value.copy()
    got = convert("truncf", "vector<2xf32>", "vector<2xbf16>", value)
    np.testing.assert_array_equal(got, vector([1.0, 2.0]))
    np.testing.assert_array_equal(value, kept)
    assert convert("extf", "f16", "f32", np.float16(0.5)).dtype == np.float32
    assert convert("truncf", "f32", "f16", np.float32(1e6)) == np.inf


@given(st.integers(0, 2**16 - 1))
@settings(max_examples=50, deadline=None)
def test_bitcast_between_bf16_and_i16_keeps_the_bits(bits):
    held = np.uint16(bits).astype(np.int16)
    value = convert("bitcast", "i16", "bf16", held)
    back = convert("bitcast", "bf16", "i16", value)
    assert int(back) & 0xFFFF == bits
    np.testing.assert_array_equal(value, np.uint16(bits).view(ml_dtypes.bfloat16).astype(np.float32))


def test_bitcast_between_f32_and_i32():
    assert convert("bitcast", "f32", "i32", np.float32(1.0)) == 0x3F800000
    assert convert("bitcast", "i32", "f32", np.int32(0x40000000)) == 2.0


def test_select_by_scalar_by_lane_and_by_element():
    two = {"a": ("vector<2xf32>", vector([1, 2])), "b": ("vector<2xf32>", vector([3, 4]))}
    text = "%r = arith.select %c, %a, %b : vector<2xf32>"
    np.testing.assert_array_equal(run_block(text, {"c": ("i1", np.bool_(False)), **two})["r"], vector([3, 4]))
    lanes = np.array([[True], [False]])
    got = run_block(text, {"c": ("i1", lanes), **two})["r"]
    np.testing.assert_array_equal(got, np.float32([[[1, 2]], [[3, 4]]]))
    element = run_block(
        "%r = arith.select %c, %a, %b : vector<2xi1>, vector<2xf32>",
        {"c": ("vector<2xi1>", vector([0, 1], np.bool_)), **two},
    )["r"]
    np.testing.assert_array_equal(element, vector([3, 2]))


def test_select_of_memrefs_by_a_condition_that_differs_asks_for_single_lanes():
    refs = {"a": ("memref<2xf32>", 0.0), "b": ("memref<2xf32>", 1.0)}
    with pytest.raises(LanesDiffer):
        run_block("%r = arith.select %c, %a, %b : memref<2xf32>", {"c": ("i1", np.array([[True, False]])), **refs})


def test_extended_products_and_sums():
    text = "%l, %h = arith.{} %a, %b : i8"
    both = {"a": ("i8", np.int8(-2)), "b": ("i8", np.int8(100))}
    got = run_block(text.format("mulsi_extended"), both)
    assert (int(got["l"]), int(got["h"])) == (wrap(-200, 8), -1)
    got = run_block(text.format("mului_extended"), both)
    assert (int(got["l"]) & 255, int(got["h"])) == (254 * 100 & 255, 254 * 100 >> 8)
    got = run_block(
        "%l, %h = arith.addui_extended %a, %b : i8, i1", {"a": ("i8", np.int8(-1)), "b": ("i8", np.int8(1))}
    )
    assert (int(got["l"]), bool(got["h"])) == (0, True)


def test_constants_of_every_sort():
    got = run_block(
        """%i = arith.constant -3 : index
        %n = arith.constant 200 : i8
        %b = arith.constant true
        %x = arith.constant 1.00390625 : bf16
        %v = arith.constant dense<[1, -1]> : vector<2xi4>
        %s = arith.constant dense<0.5> : vector<2x3xbf16>
        %z = arith.constant dense<[true, false]> : vector<2xi1>
        %big = arith.constant 18446744073709551615 : i64""",
        {},
    )
    assert got["i"] == -3
    assert type(got["i"]) is int
    assert (got["n"], got["n"].dtype) == (-56, np.int8)
    assert got["b"] == np.True_
    assert got["x"] == 1.0
    np.testing.assert_array_equal(got["v"], vector([1, -1], np.int8))
    assert got["s"].shape == (1, 1, 2, 3)
    assert (got["s"] == 0.5).all()
    np.testing.assert_array_equal(got["z"], vector([True, False], np.bool_))
    assert got["big"] == -1


def test_a_vector_of_bf16_gets_the_cores_tanh_and_exp_and_float32_the_exact_ones():
    x = vector(np.linspace(-3, 3, 16).astype(ml_dtypes.bfloat16))
    numerics = Numerics()
    got = run_block(
        "%t = math.tanh %a : vector<16xbf16>\n%e = math.exp %a : vector<16xbf16>", {"a": ("vector<16xbf16>", x)}
    )
    np.testing.assert_array_equal(got["t"], numerics.tanh(x))
    np.testing.assert_array_equal(got["e"], numerics.round_to(numerics.exp(x), "bf16"))
    wide = run_block("%t = math.tanh %a : vector<16xf32>", {"a": ("vector<16xf32>", x)})["t"]
    np.testing.assert_array_equal(wide, np.tanh(x))


@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("sqrt", math.sqrt),
        ("rsqrt", lambda x: 1 / math.sqrt(x)),
        ("log", math.log),
        ("log2", math.log2),
        ("sin", math.sin),
        ("cos", math.cos),
        ("erf", math.erf),
        ("absf", abs),
        ("ceil", math.ceil),
        ("floor", math.floor),
        ("roundeven", round),
        ("trunc", math.trunc),
        ("exp", math.exp),
        ("exp2", lambda x: 2.0**x),
        ("tanh", math.tanh),
        ("log1p", math.log1p),
        ("atan", math.atan),
    ],
)
def test_math_functions_of_float32_are_exact_to_a_few_units(op, function):
    x = np.float32([0.25, 0.5, 1.5, 2.5, 7.75])
    got = run_block(f"%r = math.{op} %a : vector<5xf32>", {"a": ("vector<5xf32>", vector(x))})["r"]
    np.testing.assert_allclose(got[0, 0], [function(float(n)) for n in x], rtol=5e-7, atol=1e-7)


def test_math_of_two_operands_and_integers():
    f = {"a": ("f32", np.float32(2)), "b": ("f32", np.float32(-3))}
    assert run_block("%r = math.powf %a, %b : f32", f)["r"] == 0.125
    assert run_block("%r = math.copysign %a, %b : f32", f)["r"] == -2.0
    assert run_block("%r = math.fma %a, %b, %a : f32", f)["r"] == -4.0
    i = {"a": ("i32", np.int32(-2)), "b": ("i32", np.int32(3))}
    assert run_block("%r = math.ipowi %a, %b : i32", i)["r"] == -8
    assert run_block("%r = math.absi %a : i32", i)["r"] == 2
    assert run_block("%r = math.ctpop %b : i32", i)["r"] == 2
    assert run_block("%r = math.ctlz %b : i32", i)["r"] == 30
    assert run_block("%r = math.cttz %a : i32", i)["r"] == 1


def test_index_dialect_and_poison():
    got = run_block(
        """%c = "index.constant"() {value = 7 : index} : () -> index
        %s = "index.add"(%c, %a) : (index, index) -> index
        %l = "index.cmp"(%c, %a) {pred = #index<cmp_predicate slt>} : (index, index) -> i1
        %u = "index.cmp"(%c, %a) {pred = #index<cmp_predicate ugt>} : (index, index) -> i1
        %q = "index.ceildivs"(%c, %a) : (index, index) -> index
        %p = "ub.poison"() : () -> vector<2xbf16>""",
        {"a": ("index", 3)},
    )
    assert (got["s"], bool(got["l"]), bool(got["u"]), got["q"]) == (10, False, True, 3)
    np.testing.assert_array_equal(got["p"], vector([0, 0]))


def test_what_is_not_known_is_refused_when_lowered_with_the_op_named():
    with pytest.raises(Fault, match=r"arith\.mulsi_extended") as caught:
        run_block("%l, %h = arith.mulsi_extended %a, %a : i64", {"a": ("i64", np.int64(1))})
    assert caught.value.code == "unsupported-op"


HERD = """
#map = affine_map<(d0, d1, d2) -> (d0, d2)>
#map1 = affine_map<(d0, d1, d2) -> (d2, d1)>
#map2 = affine_map<(d0, d1, d2) -> (d0, d1)>
func.func private @silu(memref<8xbf16, 2>) attributes {{link_with = "silu.o"}}
func.func private @f32_to_bf16_mn_m64(memref<8xbf16, 2>) attributes {{link_with = "mm.o"}}
func.func @f(%v: memref<8x8xbf16>) {{
  air.launch (%i) in (%n = %c) args(%w = %v) : memref<8x8xbf16> {{
    air.herd @h tile (%x, %y) in (%sx = %one, %sy = %one) args(%m = %w) : memref<8x8xbf16> {{
      %p = arith.constant 1.0 : bf16
      %q = arith.addf %p, %p : bf16
      {body}
    }}
    air.herd @{other} tile (%x, %y) in (%sx = %one, %sy = %one) args(%m = %w) : memref<8x8xbf16> {{
      linalg.matmul ins(%m, %m : memref<8x8xbf16>, memref<8x8xbf16>) outs(%m : memref<8x8xbf16>)
    }}
  }}
  return
}}
"""


def rounding_of_the_add(body, other):
    from npu_tools.air import parse_program
    from npu_tools.emulator.ops import core_rounding

    text = (
        HERD.format(body=body, other=other)
        .replace("  air.launch", "  %c = arith.constant 1 : index\n  air.launch", 1)
        .replace("    air.herd @h", "    %one = arith.constant 1 : index\n    air.herd @h", 1)
    )
    program = parse_program(text, name="herd.mlir")
    (add,) = (op for op in program.module.walk() if op.name == "arith.addf" and op.parent_op().name == "air.herd")
    return core_rounding(add)


@pytest.mark.parametrize(
    ("body", "other", "expected"),
    [
        ("", "g", "floor"),
        ("", "h", "conv_even"),
        ("%b = memref.alloc() : memref<8xbf16, 2>\nfunc.call @silu(%b) : (memref<8xbf16, 2>) -> ()", "g", "floor"),
        (
            "%b = memref.alloc() : memref<8xbf16, 2>\nfunc.call @f32_to_bf16_mn_m64(%b) : (memref<8xbf16, 2>) -> ()",
            "g",
            "conv_even",
        ),
    ],
)
def test_a_core_floors_until_a_kernel_or_a_multiply_of_its_herd_sets_even_rounding(body, other, expected):
    assert rounding_of_the_add(body, other) == expected
