"""FlashAttention as an AIR program: [length, heads * 64], two heads a launch step, queries by four, keys by cascade.

A segment is unrolled over two heads. Each has a herd of four columns, one a query tile of 64, by four rows, one a
share of the keys; rows hand their running maximum, sum and output down a cascade, and row 0 divides.
"""

from __future__ import annotations

from npu_tools.errors import UnusableInput

TILE, WIDTH, QUERY_TILES, STAGES, AT_ONCE = 64, 64, 4, 4, 2
"""Queries and keys a tile, a head's width, columns and rows of the herd, heads a launch step."""

_SQUARE = f"memref<{TILE}x{TILE}xbf16, 2 : i32>"
_FLAT = f"memref<{TILE * TILE}xbf16, 2 : i32>"
_LINE = f"memref<{TILE}x1xbf16, 2 : i32>"
_HELD = f"memref<{TILE}x{TILE}xbf16, 1 : i32>"
_BLOCK = QUERY_TILES * TILE
_RESULT = f"memref<{_BLOCK}x{WIDTH}xbf16, 1 : i32>"
_KERNELS = (
    ("zero_fill_g_bf16", (_FLAT,)),
    ("zero_fill_gp_bf16", (_SQUARE,)),
    ("zero_fill_sp_bf16", (_LINE,)),
    ("neg_inf_fill_up_bf16", (_LINE,)),
    ("matmul_a_b_bf16", (_SQUARE, _SQUARE, _FLAT)),
    ("matmul_g_b_bf16", (_FLAT, _SQUARE, _SQUARE)),
    ("fused_softmax", (_FLAT, _LINE, _LINE, _LINE)),
    ("maximum_up_u_bf16", (_LINE, _LINE)),
    ("exp_up_minus_u", (_LINE, _LINE, _LINE)),
    ("mul_r_gp", (_LINE, _SQUARE)),
    ("accum_sp_r_s", (_LINE, _LINE, _LINE)),
    ("vector_copy_32elems", ("i32", _LINE, _LINE)),
    ("copy_tile", (_SQUARE, _SQUARE)),
    ("div_gp_sp", (_LINE, _SQUARE)),
    ("add_gp_g", (_SQUARE, _SQUARE)),
)
_TYPES = dict(_KERNELS)


def attention(queries: int, keys: int, *, heads: int, key_heads: int | None = None) -> str:
    """The program; query heads share key heads in groups of neighbours.

    Raises:
        UnusableInput: sizes that do not divide into tiles.
    """
    shared = key_heads or heads
    if queries <= 0 or queries % _BLOCK or keys <= 0 or keys % (TILE * STAGES):
        raise UnusableInput(f"queries {queries} and keys {keys}: give multiples of {_BLOCK} and {TILE * STAGES}")
    if heads <= 0 or heads % AT_ONCE or shared <= 0 or heads % shared:
        raise UnusableInput(f"{heads} heads over {shared}: give an even number that the key heads divide")
    q, kv = f"memref<{queries}x{heads * WIDTH}xbf16>", f"memref<{keys}x{shared * WIDTH}xbf16>"
    lines = [
        f"#block = affine_map<()[s0] -> (s0 * {_BLOCK})>",
        f"#pair = affine_map<()[s0] -> (s0 * {AT_ONCE})>",
        f"#column = affine_map<()[s0] -> (s0 * {WIDTH})>",
        f"#shared = affine_map<()[s0] -> ((s0 floordiv {heads // shared}) * {WIDTH})>",
        "#next = affine_map<()[s0] -> (s0 + 1)>",
        *(f"#row{row} = affine_set<()[s0, s1] : (s0 >= 0, s1 - {row} == 0)>" for row in range(STAGES)),
        f"#middle = affine_set<()[s0, s1] : (s1 - 1 >= 0, -s1 + {STAGES - 2} >= 0, s0 >= 0)>",
        "module {",
        *(
            f'  func.func private @{name}({", ".join(types)}) attributes {{link_with = "attn_npu2.o", llvm.emit_c_interface}}'
            for name, types in _KERNELS
        ),
        *(
            f"  air.channel @{name}{stage} [{sizes}]"
            + (f" {{broadcast_shape = [{AT_ONCE} : index, 1 : index, {QUERY_TILES} : index]}}" if spread else "")
            for stage in range(STAGES)
            for name, sizes, spread in (
                ("qk_to_core", f"{AT_ONCE}, 1, 1", True),
                ("qk_in", f"{AT_ONCE}", False),
                ("v_to_core", f"{AT_ONCE}, 1, 1", True),
                ("v_in", f"{AT_ONCE}", False),
            )
        ),
        *(
            f'  air.channel @cascade_{name} [{QUERY_TILES}, {STAGES - 1}] {{channel_type = "npu_cascade"}}'
            for name in ("gp", "up", "sp")
        ),
        f"  air.channel @from_core [{QUERY_TILES}, 1]",
        f"  air.channel @out [{AT_ONCE}]",
        f"  func.func @attention_bf16(%q: {q}, %k: {kv}, %v: {kv}, %o: {q}) {{",
        f"    %blocks = arith.constant {queries // _BLOCK} : index",
        f"    %pairs = arith.constant {heads // AT_ONCE} : index",
        f"    air.launch (%b, %p) in (%nb=%blocks, %np=%pairs) args(%lq=%q, %lk=%k, %lv=%v, %lo=%o) : {q}, {kv}, {kv}, {q} {{",
        "      %row = affine.apply #block()[%b]",
        "      %head0 = affine.apply #pair()[%p]",
        "      %head1 = affine.apply #next()[%head0]",
        *_sends(queries, keys, heads * WIDTH, shared * WIDTH, q, kv),
        *_segment(keys),
        *(
            f"      air.channel.get @out[%at{head}] (%lo[%row, %q{head}] [{_BLOCK}, {WIDTH}] [{heads * WIDTH}, 1]) : ({q})"
            for head in range(AT_ONCE)
        ),
        "    }",
        "    return",
        "  }",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _sends(queries: int, keys: int, q_stride: int, kv_stride: int, q: str, kv: str) -> list[str]:
    """What the launch puts: the block's query tiles to every stage, then each stage's share of keys and values."""
    share = keys // STAGES
    lines: list[str] = []
    for stage in range(STAGES):
        lines.append(f"      %from{stage} = arith.constant {stage * share} : index")
    for head in range(AT_ONCE):
        lines += [
            f"      %at{head} = arith.constant {head} : index",
            f"      %q{head} = affine.apply #column()[%head{head}]",
            f"      %kv{head} = affine.apply #shared()[%head{head}]",
        ]
        for stage in range(STAGES):
            lines.append(
                f"      air.channel.put @qk_in{stage}[%at{head}] (%lq[%row, %q{head}] [{QUERY_TILES}, 1, {TILE}, {WIDTH}] "
                f"[{TILE * q_stride}, {WIDTH}, {q_stride}, 1]) : ({q})"
            )
        for stage in range(STAGES):
            lines.append(
                f"      air.channel.put @qk_in{stage}[%at{head}] (%lk[%from{stage}, %kv{head}] "
                f"[{share // TILE}, 1, {TILE}, {WIDTH}] [{TILE * kv_stride}, {WIDTH}, {kv_stride}, 1]) : ({kv})"
            )
        for stage in range(STAGES):
            lines.append(
                f"      air.channel.put @v_in{stage}[%at{head}] (%lv[%from{stage}, %kv{head}] "
                f"[{share // TILE}, {TILE}, {WIDTH}] [{TILE * kv_stride}, {kv_stride}, 1]) : ({kv})"
            )
    return lines


def _segment(keys: int) -> list[str]:
    """Relays through L2, the herd, and the collection of what it gives."""
    steps = keys // STAGES // TILE
    blocked = "[0, 0, 0, 0] [8, 8, 8, 8] [8, 512, 64, 1]"
    relays: list[str] = []
    for stage in range(STAGES):
        for held, inward, core, trips in (
            (f"%qk{stage}", f"qk_in{stage}", f"qk_to_core{stage}", ("%tiles", "%steps")),
            (f"%v{stage}", f"v_in{stage}", f"v_to_core{stage}", ("%steps",)),
        ):
            for count in trips:
                relays += [
                    f"        scf.for %r = %c0 to {count} step %c1 {{",
                    f"          air.channel.get @{inward}[%unit] ({held}[] [] []) : ({_HELD})",
                    f"          air.channel.put @{core}[%unit, %c0, %c0] ({held}{blocked}) : ({_HELD})",
                    "        }",
                ]
    buffers = [(f"%{name}{stage}", _HELD) for name in ("qk", "v") for stage in range(STAGES)]
    buffers += [("%result", _RESULT)]
    buffers += [(f"%{name}", _SQUARE) for name in ("mine", "tile", "value", "score", "gp")]
    buffers += [(f"%{name}", _LINE) for name in ("up", "sp")]
    passed = ("mine", "tile", "value", "score", "gp", "up", "sp", "unit")
    arguments = ", ".join(f"%{name}_=%{name}" for name in passed)
    types = ", ".join([_SQUARE] * 5 + [_LINE] * 2 + ["index"])
    return [
        f"      %units = arith.constant {AT_ONCE} : index",
        "      %only = arith.constant 1 : index",
        "      air.segment @attn_seg unroll (%unit, %u1) in (%nu=%units, %nv=%only) {",
        "        %c0 = arith.constant 0 : index",
        "        %c1 = arith.constant 1 : index",
        f"        %tiles = arith.constant {QUERY_TILES} : index",
        f"        %stages = arith.constant {STAGES} : index",
        f"        %steps = arith.constant {steps} : index",
        *(f"        {name} = memref.alloc() : {kind}" for name, kind in buffers),
        *relays,
        f"        air.herd @attn tile (%tx, %ty) in (%w=%tiles, %h=%stages) args({arguments}) : {types} "
        'attributes {link_with = "attn_npu2.o"} {',
        *(f"          {line}" for line in _core(steps)),
        "        }",
        f"        scf.forall (%t) in ({QUERY_TILES}) {{",
        "          %to = affine.apply #column()[%t]",
        f"          air.channel.get @from_core[%t, %c0] (%result[%to, 0] [{TILE}, {WIDTH}] [{WIDTH}, 1]) : ({_RESULT})",
        "        }",
        f"        air.channel.put @out[%unit] (%result[] [] []) : ({_RESULT})",
        *(f"        memref.dealloc {name} : {kind}" for name, kind in buffers),
        "      }",
    ]


def _core(steps: int) -> list[str]:
    """One core: keep the query tile of its column, go over its row's keys, merge along the cascade."""
    lines = [
        "%h0 = arith.constant 0 : index",
        "%h1 = arith.constant 1 : index",
        f"%hs = arith.constant {steps} : index",
        "%i0 = arith.constant 0 : i32",
        _call("zero_fill_gp_bf16", "%gp_"),
        _call("zero_fill_sp_bf16", "%sp_"),
        _call("neg_inf_fill_up_bf16", "%up_"),
        "%column = arith.index_cast %tx : index to i32",
    ]
    for tile in range(QUERY_TILES):
        lines += [
            *_receive("qk_to_core", "%tile_"),
            f"%n{tile} = arith.constant {tile} : i32",
            f"%is{tile} = arith.cmpi eq, %column, %n{tile} : i32",
            f"scf.if %is{tile} {{",
            f"  {_call('copy_tile', '%tile_', '%mine_')}",
            "}",
        ]
    lines += [
        "scf.for %s = %h0 to %hs step %h1 {",
        f"  %g = memref.collapse_shape %score_ [[0, 1]] : {_SQUARE} into {_FLAT}",
        f"  {_call('zero_fill_g_bf16', '%g')}",
        *(f"  {line}" for line in _receive("qk_to_core", "%tile_")),
        f"  {_call('matmul_a_b_bf16', '%mine_', '%tile_', '%g')}",
        *(f"  {line}" for line in _receive("v_to_core", "%value_")),
        f"  %sum = memref.alloc() : {_LINE}",
        f"  %ratio = memref.alloc() : {_LINE}",
        f"  {_call('fused_softmax', '%g', '%up_', '%sum', '%ratio')}",
        f"  {_call('mul_r_gp', '%ratio', '%gp_')}",
        f"  {_call('matmul_g_b_bf16', '%g', '%value_', '%gp_')}",
        f"  {_call('accum_sp_r_s', '%sp_', '%ratio', '%sum')}",
        f"  {_call('vector_copy_32elems', '%i0', '%sum', '%sp_')}",
        f"  memref.dealloc %sum : {_LINE}",
        f"  memref.dealloc %ratio : {_LINE}",
        "}",
        "%below = arith.subi %ty, %h1 : index",
        f"affine.if #row{STAGES - 1}()[%tx, %ty] {{",
        *(f"  {line}" for line in _pass_on("%gp_", "%up_", "%sp_")),
        "} else {",
        "  affine.if #middle()[%tx, %ty] {",
        *(f"    {line}" for line in (*_merge(), *_pass_on("%g2", "%up_", "%s2"), *_free())),
        "  } else {",
        *(f"    {line}" for line in _merge()),
        f"    {_call('div_gp_sp', '%s2', '%g2')}",
        f"    air.channel.put @from_core[%tx, %h0] (%g2[0, 0, 0, 0] [8, 8, 8, 8] [64, 8, 512, 1]) : ({_SQUARE})",
        *(f"    {line}" for line in _free()),
        "  }",
        "}",
    ]
    return lines


def _receive(channel: str, buffer: str) -> list[str]:
    """Every row has a channel of its own."""
    lines: list[str] = []
    for row in range(STAGES):
        lines += [
            f"affine.if #row{row}()[%tx, %ty] {{",
            f"  air.channel.get @{channel}{row}[%unit_, %ty, %tx] ({buffer}[] [] []) : ({_SQUARE})",
            "}",
        ]
    return lines


def _pass_on(output: str, maximum: str, total: str) -> list[str]:
    parts = (("gp", output, _SQUARE), ("up", maximum, _LINE), ("sp", total, _LINE))
    return [f"air.channel.put @cascade_{name}[%tx, %below] ({value}[] [] []) : ({kind})" for name, value, kind in parts]


_MERGED = (("%g2", _SQUARE), *((name, _LINE) for name in ("%u2", "%s2", "%before", "%r2", "%r1", "%both")))


def _merge() -> list[str]:
    """Both partial results brought to the larger maximum and added: output in %g2, sum in %s2, maximum in %up_."""
    return [
        *(f"{name} = memref.alloc() : {kind}" for name, kind in _MERGED),
        f"air.channel.get @cascade_gp[%tx, %ty] (%g2[] [] []) : ({_SQUARE})",
        f"air.channel.get @cascade_up[%tx, %ty] (%u2[] [] []) : ({_LINE})",
        f"air.channel.get @cascade_sp[%tx, %ty] (%s2[] [] []) : ({_LINE})",
        _call("vector_copy_32elems", "%i0", "%up_", "%before"),
        _call("maximum_up_u_bf16", "%u2", "%up_"),
        _call("exp_up_minus_u", "%u2", "%up_", "%r2"),
        _call("exp_up_minus_u", "%before", "%up_", "%r1"),
        _call("mul_r_gp", "%r2", "%g2"),
        _call("mul_r_gp", "%r1", "%gp_"),
        _call("add_gp_g", "%gp_", "%g2"),
        _call("zero_fill_sp_bf16", "%both"),
        _call("accum_sp_r_s", "%s2", "%r2", "%both"),
        _call("accum_sp_r_s", "%sp_", "%r1", "%both"),
        _call("vector_copy_32elems", "%i0", "%both", "%s2"),
    ]


def _free() -> list[str]:
    return [f"memref.dealloc {name} : {kind}" for name, kind in _MERGED]


def _call(name: str, *operands: str) -> str:
    return f"func.call @{name}({', '.join(operands)}) : ({', '.join(_TYPES[name])}) -> ()"
