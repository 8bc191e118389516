"""Vectors of 64 bytes for compiled kernels: 16 lanes of float32 or 8 of float64.

LLVM does not vectorise a butterfly over many rows of one array, because it cannot prove that the rows are distinct.
Here a row of an array [rows, lanes] is loaded as one vector value, with explicit vector arithmetic.  LLVM splits the
vectors on processors with smaller registers.  Products and sums have the flag ``contract``: they become fused
multiply-adds if the processor supports them.  The compiler chooses which; ``product`` and ``fused`` leave it no choice.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.registry import cpu_target
from numba.extending import intrinsic as _intrinsic
from numba.extending import models, register_model

from diabat.compute.scratch import VECTOR_BYTES as BYTES

CONTRACT = ("contract",)
WORD = ir.IntType(32)


class _Numbers(types.Type):
    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"{type(self).__name__}({dtype})")


class Vector(_Numbers):
    """Numba type of one vector."""


class Rows(_Numbers):
    """Numba type of the address of an array [rows, lanes].

    Numba counts references to every array that one compiled function passes to another, which costs as much as a pass
    over a small state; passing an address is free.  The caller must keep the array alive.
    """


FLOAT32, FLOAT64 = Vector(types.float32), Vector(types.float64)


def held_as(kind: type[types.Type], form: Callable[[Any], Any]) -> None:
    """Set the LLVM type of the values of a class of numba types; ``form`` gives it for one of them."""

    @register_model(kind)
    class _Model(models.PrimitiveModel):  # type: ignore[misc]  # numba has no stubs
        def __init__(self, manager: Any, frontend: Any) -> None:
            super().__init__(manager, frontend, form(frontend))


def _element(dtype: Any) -> Any:
    """LLVM type of a number in memory."""
    if isinstance(dtype, types.Integer):
        return ir.IntType(dtype.bitwidth)  # type: ignore[attr-defined]  # numba has no stubs
    return ir.FloatType() if dtype == types.float32 else ir.DoubleType()


def _lanes(element: Any) -> int:
    return BYTES * 8 // int(element.intrinsic_name[1:])  # "f32", "f64", "i8"


def _vector(element: Any) -> Any:
    """LLVM type of a vector of numbers of an LLVM type."""
    return ir.VectorType(element, _lanes(element))


held_as(Vector, lambda kind: _vector(_element(kind.dtype)))
held_as(Rows, lambda kind: _element(kind.dtype).as_pointer())


def _vector_of(dtype: Any) -> Vector:
    return FLOAT32 if dtype == types.float32 else FLOAT64


def _data_of(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """Pointer to the first number of an array; any other value as it is, also the pointer of `Rows`."""
    return context.make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else value


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Numba's decorator, typed: the result is called without the typing context."""
    called: Callable[..., Any] = _intrinsic(function)
    return called


def operation(
    signature: Callable[..., Any] = lambda *kinds: kinds[-1](*kinds),
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function for compiled code of one that writes its LLVM code.

    That one takes the builder and the values, of arrays and `Rows` the pointer to the first number.  It returns the
    value, or a list for a tuple.

    Args:
        signature: Takes the numba types of the arguments; by default the result has the type of the last.
    """

    def made_of(emit: Callable[..., Any]) -> Callable[..., Any]:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pairs = zip(signature.args, arguments, strict=True)
            value = emit(builder, *(_data_of(context, builder, kind, argument) for kind, argument in pairs))
            if signature.return_type == types.void:
                return context.get_dummy_value()
            is_tuple = isinstance(value, list)
            return context.make_tuple(builder, signature.return_type, value) if is_tuple else value

        @wraps(emit)  # numba takes name and arguments from there
        def typed(typing_context: Any, *kinds: Any) -> Any:
            return signature(*kinds), generate

        return intrinsic(typed)

    return made_of


def same(vector: Any, value: float) -> Any:
    """LLVM constant: a number in every lane of a type of vectors."""
    return ir.Constant(vector, [value] * vector.count)


def integers(values: Sequence[int]) -> Any:
    """LLVM constant: a vector of integers of 32 bits."""
    return ir.Constant(ir.VectorType(WORD, len(values)), list(values))


def broadcast(builder: Any, vector: Any, value: Any) -> Any:
    """LLVM value: a number in every lane."""
    undefined = ir.Constant(vector, ir.Undefined)
    single = builder.insert_element(undefined, value, ir.Constant(WORD, 0))
    return builder.shuffle_vector(single, undefined, integers([0] * vector.count))


def call(builder: Any, name: str, result: Any, *arguments: Any, **options: Any) -> Any:
    """Call the LLVM function ``name``, in which {} is the type of the last argument, such as v16f32."""
    name = f"llvm.{name}".format(_form(arguments[-1].type))
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(result, [a.type for a in arguments]), name)
    return builder.call(function, arguments, **options)


def _form(vector: Any) -> str:
    return f"v{vector.count}{vector.element.intrinsic_name}"


def _row(builder: Any, data: Any, index: Any) -> Any:
    """Pointer to row ``index`` of an array [rows, lanes], as a pointer to a vector."""
    vector = _vector(data.type.pointee)
    place = builder.gep(data, [builder.mul(index, ir.Constant(index.type, vector.count))])
    return builder.bitcast(place, vector.as_pointer())


def _align(row: Any) -> int:
    return BYTES // row.type.pointee.count


@operation(lambda array: Rows(array.dtype)(array))
def address(builder: Any, array: Any) -> Any:
    """Address of a C-contiguous array, whose last axis is the lanes if it is loaded in vectors."""
    return array


@operation(lambda like, place: Rows(like)(like, types.intp))
def at_address(builder: Any, like: Any, place: Any) -> Any:
    """`Rows` of numbers of the type of ``like`` at an address, as of ``Tensor.data_ptr``; the caller keeps them."""
    return builder.inttoptr(place, like.type.as_pointer())


@operation(lambda array, count: Rows(array.dtype)(array, types.intp))
def skip(builder: Any, array: Any, count: Any) -> Any:
    """`Rows` from row ``count`` on."""
    return builder.gep(array, [builder.mul(count, ir.Constant(count.type, _lanes(array.type.pointee)))])


@operation(lambda array, index: Rows(array.dtype)(array, types.intp))
def offset(builder: Any, array: Any, index: Any) -> Any:
    """`Rows` from number ``index`` on."""
    return builder.gep(array, [index])


@intrinsic
def opened(typing_context: Any, arrays: Any) -> Any:
    """A NamedTuple with the addresses of its C-contiguous arrays in their place; the caller keeps the arrays."""
    kinds = [Rows(kind.dtype) if isinstance(kind, types.Array) else kind for kind in arrays.types]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values = cgutils.unpack_tuple(builder, arguments[0], len(kinds))
        pairs = zip(signature.args[0].types, values, strict=True)
        data = [_data_of(context, builder, kind, value) for kind, value in pairs]
        return context.make_tuple(builder, signature.return_type, data)

    result = types.NamedTuple(kinds, arrays.instance_class)  # type: ignore[attr-defined]  # numba has no stubs
    return result(arrays), generate


@operation(lambda array, row: _vector_of(array.dtype)(array, types.intp))
def load(builder: Any, array: Any, row: Any) -> Any:
    """Row of an array [rows, lanes] or of `Rows` as a vector."""
    place = _row(builder, array, row)
    value = builder.load(place, typ=place.type.pointee)
    value.align = _align(place)
    return value


@operation(lambda array, row, value: types.void(array, types.intp, value))
def store(builder: Any, array: Any, row: Any, value: Any) -> Any:
    """Write a vector to a row of an array [rows, lanes]."""
    place = _row(builder, array, row)
    builder.store(value, place, align=_align(place))


@operation(lambda array, row, count: _vector_of(array.dtype)(array, types.intp, types.intp))
def load_part(builder: Any, array: Any, row: Any, count: Any) -> Any:
    """The first numbers of a row, 0 in the other lanes, whose memory is not read."""
    place = _row(builder, array, row)
    vector, align = place.type.pointee, ir.Constant(WORD, _align(place))
    first = _compared(builder, "<", vector.count, count)
    return call(builder, "masked.load.{}.p0", vector, place, align, first, same(vector, 0.0))


@operation(lambda array, row, count, value: types.void(array, types.intp, types.intp, value))
def store_part(builder: Any, array: Any, row: Any, count: Any, value: Any) -> Any:
    """Write the first numbers of a vector to a row."""
    place = _row(builder, array, row)
    align, first = ir.Constant(WORD, _align(place)), _compared(builder, "<", value.type.count, count)
    call(builder, f"masked.store.{_form(value.type)}.p0", ir.VoidType(), value, place, align, first)


@operation(lambda flags, row, x, y: x(flags, types.intp, x, y))
def where_set(builder: Any, flags: Any, row: Any, x: Any, y: Any) -> Any:
    """X where the byte of a lane, in a row of as many bytes as lanes, is not 0, else y."""
    lanes = ir.VectorType(ir.IntType(8), x.type.count)
    place = builder.gep(flags, [builder.mul(row, ir.Constant(row.type, lanes.count))])
    value = builder.load(builder.bitcast(place, lanes.as_pointer()), typ=lanes)
    value.align = 1
    return builder.select(builder.icmp_unsigned("!=", value, same(lanes, 0)), x, y)


@operation(lambda vector, lane, value: vector(vector, types.intp, vector.dtype))
def with_item(builder: Any, vector: Any, lane: Any, value: Any) -> Any:
    """The vector with another number in one lane.

    A vector that is loaded where its numbers were just stored one by one waits for all of them.
    """
    here = _compared(builder, "==", vector.type.count, lane)
    return builder.select(here, broadcast(builder, vector.type, value), vector)


def _compared(builder: Any, comparison: str, count: int, number: Any) -> Any:
    """LLVM value <i1>: the indices of lanes, compared with a number."""
    lanes, number = integers(range(count)), builder.trunc(number, WORD)
    return builder.icmp_signed(comparison, lanes, broadcast(builder, lanes.type, number))


@operation(lambda array, index: _vector_of(array.dtype)(array, types.intp))
def entry(builder: Any, array: Any, index: Any) -> Any:
    """Number ``index`` of an array [rows, lanes], counted over lanes and rows, in every lane."""
    number = builder.load(builder.gep(array, [index]))
    return broadcast(builder, _vector(number.type), number)


@operation(lambda array, index: array.dtype(array, types.intp))
def item(builder: Any, array: Any, index: Any) -> Any:
    """Number ``index`` of `Rows`, or of an array in memory order."""
    return builder.load(builder.gep(array, [index]))


@operation(lambda array, index, value: types.void(array, types.intp, array.dtype))
def set_item(builder: Any, array: Any, index: Any, value: Any) -> Any:
    """Write number ``index`` of `Rows`, or of an array in memory order."""
    builder.store(value, builder.gep(array, [index]))


@operation(lambda scalar: _vector_of(scalar)(scalar))
def splat(builder: Any, scalar: Any) -> Any:
    """The same number in every lane."""
    return broadcast(builder, _vector(scalar.type), scalar)


@intrinsic
def constant(typing_context: Any, like: Any, scalar: Any) -> Any:
    """A number in every lane of a vector of the type of ``like``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = context.cast(builder, arguments[1], signature.args[1], signature.return_type.dtype)
        return broadcast(builder, arguments[0].type, value)

    return like(like, scalar), generate


@operation()
def add(builder: Any, a: Any, b: Any) -> Any:
    """A + b."""
    return builder.fadd(a, b, flags=CONTRACT)


@operation()
def sub(builder: Any, a: Any, b: Any) -> Any:
    """A - b."""
    return builder.fsub(a, b, flags=CONTRACT)


@operation()
def mul(builder: Any, a: Any, b: Any) -> Any:
    """A · b."""
    return builder.fmul(a, b, flags=CONTRACT)


@operation()
def divide(builder: Any, a: Any, b: Any) -> Any:
    """A / b."""
    return builder.fdiv(a, b)


@operation()
def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """C + a · b."""
    return builder.fadd(c, builder.fmul(a, b, flags=CONTRACT), flags=CONTRACT)


@operation()
def fnma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """C - a · b."""
    return builder.fsub(c, builder.fmul(a, b, flags=CONTRACT), flags=CONTRACT)


_, _, _FEATURES = cpu_target.target_context.codegen().magic_tuple()
_FUSES = platform.machine().lower() in ("aarch64", "arm64") or "+fma" in _FEATURES.split(",")


def _rounded_once(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """C + a · b: one operation on processors that have it, so that rounding does not depend on the compiler."""
    return call(builder, "fma.{}", a.type, a, b, c) if _FUSES else builder.fadd(c, builder.fmul(a, b))


@operation()
def product(builder: Any, a: Any, b: Any) -> Any:
    """A · b, which is not fused with a sum."""
    return builder.fmul(a, b)


@operation()
def fused(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """C + a · b, rounded once."""
    return _rounded_once(builder, a, b, c)


@operation()
def fused_negative(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """C - a · b, rounded once."""
    return _rounded_once(builder, builder.fneg(a), b, c)


@operation()
def nearest(builder: Any, a: Any) -> Any:
    """The nearest whole number."""
    return call(builder, "rint.{}", a.type, a)


@operation()
def where_less(builder: Any, a: Any, b: Any, x: Any, y: Any) -> Any:
    """X where a < b, else y."""
    return builder.select(builder.fcmp_ordered("<", a, b), x, y)


@operation(lambda a: a.dtype(a))
def largest(builder: Any, a: Any) -> Any:
    """The largest number of a vector without NaN."""
    return call(builder, "vector.reduce.fmax.{}", a.type.element, a, fastmath=("nnan",))


def exchange(distance: int) -> Callable[..., Any]:
    """Make the operation on a vector whose lane q becomes lane q ^ distance."""

    @operation()
    def exchanged(builder: Any, a: Any) -> Any:
        return builder.shuffle_vector(a, a, integers([q ^ distance for q in range(a.type.count)]))

    return exchanged


def parity(bits: int) -> Callable[..., Any]:
    """Make the operation that gives -1 in lanes with an odd number of these bits, else 1, in the type of a vector."""

    @operation()
    def signs(builder: Any, like: Any) -> Any:
        values = [1.0 - 2.0 * ((q & bits).bit_count() % 2) for q in range(like.type.count)]
        return ir.Constant(like.type, values)

    return signs
