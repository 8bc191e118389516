"""Vectors of 64 bytes for compiled kernels: 16 lanes of float32 or 8 of float64.

LLVM does not vectorise a butterfly over many rows of one array, because it cannot prove that the rows are distinct.
Here a row of an array [rows, lanes] is loaded as one vector value, with explicit vector arithmetic.  LLVM splits the
vectors on processors with smaller registers.  Products and sums have the flag ``contract``: they become fused
multiply-adds if the processor supports them.  The compiler chooses which; ``product`` and ``fused`` leave it no choice.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import partial
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.registry import cpu_target
from numba.extending import intrinsic as _intrinsic
from numba.extending import models, register_model

from diabat.compute.scratch import VECTOR_BYTES as BYTES

_CONTRACT = ("contract",)


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Numba's decorator, typed: the result is called without the typing context."""
    made: Callable[..., Any] = _intrinsic(function)
    return made


class Vector(types.Type):
    """Numba type of one vector."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Vector({dtype})")


FLOAT32, FLOAT64 = Vector(types.float32), Vector(types.float64)


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]  # numba has no stubs
    def __init__(self, manager: Any, frontend: Vector) -> None:
        element = ir.FloatType() if frontend.dtype == types.float32 else ir.DoubleType()
        count = BYTES * 8 // frontend.dtype.bitwidth
        super().__init__(manager, frontend, ir.VectorType(element, count))


class Rows(types.Type):
    """Numba type of the address of an array [rows, lanes].

    Numba counts references to every array that one compiled function passes to another, which costs as much as a pass
    over a small state; passing an address is free.  The caller must keep the array alive.
    """

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Rows({dtype})")


@register_model(Rows)
class _RowsModel(models.PrimitiveModel):  # type: ignore[misc]  # numba has no stubs
    def __init__(self, manager: Any, frontend: Rows) -> None:
        super().__init__(manager, frontend, _element(frontend.dtype).as_pointer())


def _element(dtype: Any) -> Any:
    """LLVM type of a number in memory."""
    if isinstance(dtype, types.Integer):
        return ir.IntType(dtype.bitwidth)  # type: ignore[attr-defined]  # numba has no stubs
    return ir.FloatType() if dtype == types.float32 else ir.DoubleType()


def data_of(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """Pointer to the first number of an array or of `Rows`."""
    return value if isinstance(kind, Rows) else context.make_array(kind)(context, builder, value).data


def _row(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    """Pointer to row ``index`` of a C-contiguous array [rows, lanes], as a pointer to a vector."""
    vector = context.get_value_type(_vector_of(kind.dtype))
    offset = builder.mul(index, ir.Constant(index.type, vector.count))
    data = builder.gep(data_of(context, builder, kind, array), [offset])
    return builder.bitcast(data, vector.as_pointer()), vector


def broadcast(builder: Any, vector: Any, value: Any) -> Any:
    """LLVM value: a number in every lane."""
    undefined = ir.Constant(vector, ir.Undefined)
    single = builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
    mask = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    return builder.shuffle_vector(single, undefined, mask)


def _vector_of(dtype: Any) -> Vector:
    return FLOAT32 if dtype == types.float32 else FLOAT64


@intrinsic
def address(typing_context: Any, array: Any) -> Any:
    """Address of a C-contiguous array, whose last axis is the lanes if it is loaded in vectors."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return data_of(context, builder, signature.args[0], arguments[0])

    return Rows(array.dtype)(array), generate


@intrinsic
def at_address(typing_context: Any, like: Any, place: Any) -> Any:
    """`Rows` of numbers of the type of ``like`` at an address, as of ``Tensor.data_ptr``; the caller keeps them."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[1], context.get_value_type(signature.return_type))

    return Rows(like)(like, types.intp), generate


@intrinsic
def skip(typing_context: Any, array: Any, count: Any) -> Any:
    """`Rows` from row ``count`` on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = ir.Constant(arguments[1].type, BYTES * 8 // signature.return_type.dtype.bitwidth)
        data = data_of(context, builder, signature.args[0], arguments[0])
        return builder.gep(data, [builder.mul(arguments[1], lanes)])

    return Rows(array.dtype)(array, types.intp), generate


@intrinsic
def offset(typing_context: Any, array: Any, index: Any) -> Any:
    """`Rows` from number ``index`` on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.gep(data_of(context, builder, signature.args[0], arguments[0]), [arguments[1]])

    return Rows(array.dtype)(array, types.intp), generate


@intrinsic
def opened(typing_context: Any, arrays: Any) -> Any:
    """A NamedTuple with the addresses of its C-contiguous arrays in their place; the caller keeps the arrays."""
    kinds = [Rows(kind.dtype) if isinstance(kind, types.Array) else kind for kind in arrays.types]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values = cgutils.unpack_tuple(builder, arguments[0], len(kinds))
        data = [
            data_of(context, builder, kind, value) if isinstance(kind, types.Array) else value
            for kind, value in zip(signature.args[0].types, values, strict=True)
        ]
        return context.make_tuple(builder, signature.return_type, data)

    result = types.NamedTuple(kinds, arrays.instance_class)  # type: ignore[attr-defined]  # numba has no stubs
    return result(arrays), generate


@intrinsic
def load(typing_context: Any, array: Any, row: Any) -> Any:
    """Row of an array [rows, lanes] or of `Rows` as a vector."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, vector = _row(context, builder, signature.args[0], *arguments)
        value = builder.load(pointer, typ=vector)
        value.align = BYTES // vector.count
        return value

    return _vector_of(array.dtype)(array, types.intp), generate


@intrinsic
def store(typing_context: Any, array: Any, row: Any, value: Any) -> Any:
    """Write a vector to a row of an array [rows, lanes]."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_value, index, vector_value = arguments
        pointer, vector = _row(context, builder, signature.args[0], array_value, index)
        builder.store(vector_value, pointer, align=BYTES // vector.count)
        return context.get_dummy_value()

    return types.void(array, types.intp, value), generate


@intrinsic
def load_part(typing_context: Any, array: Any, row: Any, count: Any) -> Any:
    """The first numbers of a row, 0 in the other lanes, whose memory is not read."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_value, index, count_value = arguments
        pointer, vector = _row(context, builder, signature.args[0], array_value, index)
        given = pointer, _INT32(BYTES // vector.count), _first(builder, vector, count_value)
        return _masked(builder, "load", vector, vector, *given, ir.Constant(vector, [0.0] * vector.count))

    return _vector_of(array.dtype)(array, types.intp, types.intp), generate


@intrinsic
def store_part(typing_context: Any, array: Any, row: Any, count: Any, value: Any) -> Any:
    """Write the first numbers of a vector to a row."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_value, index, count_value, value_vector = arguments
        pointer, vector = _row(context, builder, signature.args[0], array_value, index)
        given = value_vector, pointer, _INT32(BYTES // vector.count), _first(builder, vector, count_value)
        _masked(builder, "store", vector, ir.VoidType(), *given)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, value), generate


@intrinsic
def where_set(typing_context: Any, flags: Any, row: Any, x: Any, y: Any) -> Any:
    """X where the byte of a lane, in a row of as many bytes as lanes, is not 0, else y."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = data_of(context, builder, signature.args[0], arguments[0])
        count = arguments[2].type.count
        words = ir.VectorType(ir.IntType(8), count)
        place = builder.gep(data, [builder.mul(arguments[1], ir.Constant(arguments[1].type, count))])
        value = builder.load(builder.bitcast(place, words.as_pointer()), typ=words)
        value.align = 1
        is_set = builder.icmp_unsigned("!=", value, ir.Constant(words, [0] * count))
        return builder.select(is_set, *arguments[2:])

    return x(flags, types.intp, x, y), generate


@intrinsic
def with_item(typing_context: Any, vector: Any, lane: Any, value: Any) -> Any:
    """The vector with another number in one lane.

    A vector that is loaded where its numbers were just stored one by one waits for all of them.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = arguments[0].type
        words = ir.VectorType(ir.IntType(32), kind.count)
        lanes = broadcast(builder, words, builder.trunc(arguments[1], ir.IntType(32)))
        here = builder.icmp_signed("==", ir.Constant(words, list(range(kind.count))), lanes)
        return builder.select(here, broadcast(builder, kind, arguments[2]), arguments[0])

    return vector(vector, types.intp, vector.dtype), generate


_INT32 = partial(ir.Constant, ir.IntType(32))


def _first(builder: Any, vector: Any, count: Any) -> Any:
    """Which lanes are below a number, <i1>."""
    words = ir.VectorType(ir.IntType(32), vector.count)
    below = broadcast(builder, words, builder.trunc(count, ir.IntType(32)))
    return builder.icmp_signed("<", ir.Constant(words, list(range(vector.count))), below)


def _masked(builder: Any, name: str, vector: Any, result: Any, *arguments: Any) -> Any:
    """Call a masked access to memory."""
    full = f"llvm.masked.{name}.v{vector.count}f{32 if vector.element == ir.FloatType() else 64}.p0"
    function = builder.module.globals.get(full)
    if function is None:
        kinds = [a.type for a in arguments]
        function = ir.Function(builder.module, ir.FunctionType(result, kinds), full)
    return builder.call(function, arguments)


@intrinsic
def entry(typing_context: Any, array: Any, index: Any) -> Any:
    """Number ``index`` of an array [rows, lanes], counted over lanes and rows, in every lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = context.get_value_type(signature.return_type)
        data = data_of(context, builder, signature.args[0], arguments[0])
        return broadcast(builder, vector, builder.load(builder.gep(data, [arguments[1]])))

    return _vector_of(array.dtype)(array, types.intp), generate


@intrinsic
def item(typing_context: Any, array: Any, index: Any) -> Any:
    """Number ``index`` of `Rows`, or of an array in memory order."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = data_of(context, builder, signature.args[0], arguments[0])
        return builder.load(builder.gep(data, [arguments[1]]))

    return array.dtype(array, types.intp), generate


@intrinsic
def set_item(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Write number ``index`` of `Rows`, or of an array in memory order."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = data_of(context, builder, signature.args[0], arguments[0])
        builder.store(arguments[2], builder.gep(data, [arguments[1]]))
        return context.get_dummy_value()

    return types.void(array, types.intp, array.dtype), generate


@intrinsic
def splat(typing_context: Any, scalar: Any) -> Any:
    """The same number in every lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return broadcast(builder, context.get_value_type(signature.return_type), arguments[0])

    return _vector_of(scalar)(scalar), generate


@intrinsic
def constant(typing_context: Any, like: Any, scalar: Any) -> Any:
    """A number in every lane of a vector of the type of ``like``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.return_type
        value = context.cast(builder, arguments[1], signature.args[1], kind.dtype)
        return broadcast(builder, context.get_value_type(kind), value)

    return like(like, scalar), generate


def _binary(name: str, build: Callable[[Any, Any, Any], Any]) -> Callable[..., Any]:
    """Arithmetic on two vectors of one type; ``build`` takes the LLVM builder and both values."""

    def typed(typing_context: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return build(builder, *arguments)

        return a(a, b), generate

    typed.__name__ = name
    return intrinsic(typed)


def _ternary(name: str, build: Callable[[Any, Any, Any, Any], Any]) -> Callable[..., Any]:
    """The same on three vectors."""

    def typed(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return build(builder, *arguments)

        return a(a, b, c), generate

    typed.__name__ = name
    return intrinsic(typed)


def _add(builder: Any, a: Any, b: Any) -> Any:
    return builder.fadd(a, b, flags=_CONTRACT)


def _sub(builder: Any, a: Any, b: Any) -> Any:
    return builder.fsub(a, b, flags=_CONTRACT)


def _mul(builder: Any, a: Any, b: Any) -> Any:
    return builder.fmul(a, b, flags=_CONTRACT)


add = _binary("add", _add)
"""A + b."""
sub = _binary("sub", _sub)
"""A - b."""
mul = _binary("mul", _mul)
"""A · b."""
divide = _binary("divide", lambda builder, a, b: builder.fdiv(a, b))
"""A / b."""
fma = _ternary("fma", lambda builder, a, b, c: _add(builder, c, _mul(builder, a, b)))
"""C + a · b."""
fnma = _ternary("fnma", lambda builder, a, b, c: _sub(builder, c, _mul(builder, a, b)))
"""C - a · b."""


_, _, _FEATURES = cpu_target.target_context.codegen().magic_tuple()
_FUSES = platform.machine().lower() in ("aarch64", "arm64") or "+fma" in _FEATURES.split(",")


def _rounded_once(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """C + a · b: one operation on processors that have it, so that rounding does not depend on the compiler."""
    if not _FUSES:
        return builder.fadd(c, builder.fmul(a, b))
    name = f"llvm.fma.v{a.type.count}f{32 if a.type.element == ir.FloatType() else 64}"
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(a.type, [a.type] * 3), name)
    return builder.call(function, [a, b, c])


product = _binary("product", lambda builder, a, b: builder.fmul(a, b))
"""A · b, which is not fused with a sum."""
fused = _ternary("fused", lambda builder, a, b, c: _rounded_once(builder, a, b, c))
"""C + a · b, rounded once."""
fused_negative = _ternary(
    "fused_negative", lambda builder, a, b, c: _rounded_once(builder, builder.fneg(a), b, c)
)
"""C - a · b, rounded once."""


@intrinsic
def nearest(typing_context: Any, a: Any) -> Any:
    """The nearest whole number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = context.get_value_type(signature.return_type)
        width = signature.return_type.dtype.bitwidth
        name = f"llvm.rint.v{vector.count}f{width}"
        function = builder.module.globals.get(name)
        if function is None:
            function = ir.Function(builder.module, ir.FunctionType(vector, [vector]), name)
        return builder.call(function, arguments)

    return a(a), generate


@intrinsic
def where_less(typing_context: Any, a: Any, b: Any, x: Any, y: Any) -> Any:
    """X where a < b, else y."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        below = builder.fcmp_ordered("<", *arguments[:2])
        return builder.select(below, *arguments[2:])

    return x(a, b, x, y), generate


@intrinsic
def largest(typing_context: Any, a: Any) -> Any:
    """The largest number of a vector without NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = context.get_value_type(signature.args[0])
        name = f"llvm.vector.reduce.fmax.v{vector.count}f{signature.return_type.bitwidth}"
        function = builder.module.globals.get(name)
        if function is None:
            function = ir.Function(builder.module, ir.FunctionType(vector.element, [vector]), name)
        return builder.call(function, arguments, fastmath=("nnan",))

    return a.dtype(a), generate


def exchange(distance: int) -> Callable[..., Any]:
    """Make the operation on a vector whose lane q becomes lane q ^ distance."""

    def exchanged(typing_context: Any, a: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            count = context.get_value_type(signature.return_type).count
            order = ir.Constant(ir.VectorType(ir.IntType(32), count), [q ^ distance for q in range(count)])
            return builder.shuffle_vector(arguments[0], arguments[0], order)

        return a(a), generate

    return intrinsic(exchanged)


def parity(bits: int) -> Callable[..., Any]:
    """Make the operation that gives -1 in lanes with an odd number of these bits, else 1, in the type of a vector."""

    def signs(typing_context: Any, like: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            vector = context.get_value_type(signature.return_type)
            return ir.Constant(
                vector, [1.0 - 2.0 * ((q & bits).bit_count() % 2) for q in range(vector.count)]
            )

        return like(like), generate

    return intrinsic(signs)
