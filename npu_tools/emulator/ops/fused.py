"""Products that the compiler leaves in the accumulator: bf16 `arith.mulf` results that are never rounded.

The vector unit multiplies bf16 into float32 accumulators. Where the product is next extended to float32 or added to, the
compiler goes on in the accumulator, also when the program writes it to a scratch buffer and reads it back at once
(upstream's builders do that to keep a product from feeding an addition directly).

Inferred from published errors on NPU2 (mlir-air kernel_registry/details), both kernels floor elsewhere:

    kernel               published   product kept   product rounded (floor)
    RMSNorm 2048x2048    4.2e-3      4.22e-3        3.89e-3
    RMSNorm 2048x128     4.6e-3      4.61e-3        4.25e-3
    RMSNorm 2048x1024    4.3e-3      4.35e-3        3.97e-3
    LayerNorm 1024x768   4.4e-3      4.44e-3        4.63e-3
    largest abs. error   0.19, 0.19  0.188, 0.188   0.125, 0.250
"""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from npu_tools.emulator.ops.signature import groups, inside_linalg, is_bf16, is_vector, shape_of

_GOES_ON = ("arith.extf", "arith.addf")


def stays_in_accumulator(op: Operation) -> bool:
    """Whether the product of this `arith.mulf` is used before it is narrowed to bf16."""
    result = op.results[0]
    if not is_bf16(result.type) or not (is_vector(result.type) or inside_linalg(op)):
        return False
    users = [use.operation for use in result.uses]
    if len(users) != 1:
        return False
    if users[0].name in _GOES_ON:
        return True
    return users[0].name == "vector.transfer_write" and _scratch_goes_on(users[0], result)


def _scratch_goes_on(write: Operation, product: SSAValue) -> bool:
    """Whether all that is written to this buffer is read back at once, whole, and goes on in the accumulator."""
    (value,), (buffer,), indices, masks = groups(write)
    owner = buffer.owner
    if value is not product or masks or not isinstance(owner, Operation) or owner.name != "memref.alloc":
        return False
    if shape_of(buffer.type) != shape_of(product.type) or not is_bf16(buffer.type):
        return False
    block = write.parent_block()
    users = {use.operation for use in buffer.uses}
    if any(user.name not in ("vector.transfer_write", "vector.transfer_read", "memref.dealloc") for user in users):
        return False
    if any(user.parent_block() is not block for user in users if user.name == "vector.transfer_read"):
        return _pairs_elsewhere(users, write)
    return _read_back(write, users, indices)


def _pairs_elsewhere(users: set[Operation], write: Operation) -> bool:
    """The same where the buffer serves several loops: each block must write before it reads."""
    blocks = {user.parent_block() for user in users if user.name == "vector.transfer_read"}
    for block in blocks:
        assert block is not None
        first = next(op for op in block.ops if op in users)
        if first.name != "vector.transfer_write":
            return False
    return _read_back(write, users, groups(write)[2])


def _read_back(write: Operation, users: set[Operation], indices: list[SSAValue]) -> bool:
    following = write.next_op
    while following is not None and following not in users:
        following = following.next_op
    if following is None or following.name != "vector.transfer_read" or groups(following)[1] != indices:
        return False
    after = following.next_op
    while after is not None and after not in users:
        after = after.next_op
    if after is not None and after.name == "vector.transfer_read":
        return False
    readers = [use.operation for use in following.results[0].uses]
    return bool(readers) and all(reader.name in _GOES_ON for reader in readers)
