"""Mistakes in the kernels and the host code of PyTorch's operators, each with a test that does not pass with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import test_mps_adaptive_avg_pooling as pooling
import test_mps_elementwise as elementwise
import test_mps_take_put as take_put
import torch
from metal_host import simulated_mps
from overlay.paths import OVERLAYS

MPS = OVERLAYS[0] / "aten/src/ATen/native/mps"
# Host code whose functions the registrations name, rather than a stub that takes the last one.
REGISTRATIONS = {"AdaptiveAvgPooling": Path(__file__).with_name("adaptive_avg_pooling_registrations.mm")}


@dataclass(frozen=True)
class Mistake:
    file: str
    old: str
    new: str
    test: Callable[[], None]


def deterministic(test):
    def run():
        torch.use_deterministic_algorithms(True)
        try:
            test(None, torch.float32)
        finally:
            torch.use_deterministic_algorithms(False)

    return run


def sizes(size, output_size):
    return lambda: pooling.test_sizes(torch.float32, size, output_size)


MISTAKES = {
    "nan_is_taken_for_zero": Mistake(
        "kernels/Heaviside.metal", "self == T(0)", "!(self > T(0)) && !(self < T(0))",
        elementwise.test_heaviside_special_values,
    ),
    "zero_has_no_quantile": Mistake(
        "kernels/Ndtri.metal", "if (tail == 0) {", "if (tail == 2) {", lambda: elementwise.test_ndtri(torch.float32)
    ),
    "denormals_are_forgotten": Mistake(
        "kernels/Frexp.metal", "if (magnitude < kOne) {", "if (magnitude < 1) {",
        lambda: elementwise.test_frexp_special_values(torch.float32),
    ),
    "one_output_has_the_strides_of_the_other": Mistake(
        "kernels/Frexp.metal", "offset_from_coord(pos, exponent_strides, ndim)",
        "offset_from_coord(pos, mantissa_strides, ndim)", elementwise.test_frexp_out,
    ),
    "outputs_are_swapped": Mistake(
        "operations/Frexp.mm", "iter.shape(), iter.strides(0), iter.strides(1)",
        "iter.shape(), iter.strides(1), iter.strides(0)", elementwise.test_frexp_out,
    ),
    "a_part_is_taken_for_the_whole": Mistake(
        "operations/Frexp.mm", "frexp_kernel_mps(sub_iter);", "frexp_kernel_mps(sub_iter);\n      break;",
        elementwise.test_offsets_beyond_32_bits,
    ),
    "operands_are_swapped": Mistake(
        "operations/Heaviside.mm", "static void heaviside_kernel_mps(TensorIteratorBase& iter) {",
        "static void heaviside_kernel_mps(TensorIteratorBase& original) {\n"
        "  auto iter = TensorIterator::binary_op(\n"
        "      const_cast<Tensor&>(original.tensor(0)), original.tensor(2), original.tensor(1));",
        elementwise.test_heaviside_special_values,
    ),
    "negative_indices_are_forgotten": Mistake(
        "kernels/TakePut.metal", "return index < 0 ? index + p.self_numel : index;", "return index;",
        lambda: take_put.test_take(torch.int64),
    ),
    "the_end_is_in_range": Mistake(
        "kernels/TakePut.metal", "index >= p.self_numel", "index > p.self_numel",
        take_put.test_bad_indices_are_reported_and_touch_nothing,
    ),
    "strides_of_self_are_forgotten": Mistake(
        "kernels/TakePut.metal", "position % p.self_sizes[d] * p.self_strides[d]", "position % p.self_sizes[d]",
        lambda: take_put.test_take(torch.float32),
    ),
    "atomics_count_from_the_word": Mistake(
        "kernels/TakePut.metal", "p.self_offset + offset_of(position, p)", "offset_of(position, p)",
        lambda: take_put.test_put_into_a_view(torch.float16, True),
    ),
    "adding_is_not_atomic": Mistake(
        "kernels/TakePut.metal", "AtomicType<T>::atomic_add(self, offset, value);",
        "reinterpret_cast<device T*>(self)[offset] = value;",
        lambda: take_put.test_put_into_a_view(torch.int32, True),
    ),
    "every_duplicate_sums": Mistake(
        "kernels/TakePut.metal", "positions[first - 1] == position", "positions[first - 1] > position",
        deterministic(take_put.test_deterministic_sums),
    ),
    "values_are_not_in_their_order": Mistake(
        "kernels/TakePut.metal", "Place place(static_cast<uint>(order[i]), p)", "Place place(i, p)",
        deterministic(take_put.test_deterministic_sums),
    ),
    "index_and_source_are_swapped": Mistake(
        "operations/TakePut.mm",
        "bind_operand(encoder, part, kValue, 1);\n      bind_operand(encoder, part, kIndex, 2);",
        "bind_operand(encoder, part, kValue, 2);\n      bind_operand(encoder, part, kIndex, 1);",
        lambda: take_put.test_put_into_a_view(torch.int64, False),
    ),
    "storage_offset_is_forgotten": Mistake(
        "operations/TakePut.mm", "mtl_setArgs<2>(encoder, self, params, errors);",
        "mtl_setArgs<2>(encoder, getMTLBufferStorage(self), params, errors);",
        lambda: take_put.test_take(torch.int16),
    ),
    "sizes_must_divide": Mistake(
        "kernels/AdaptiveAvgPooling.metal", "end(c10::metal::ceil_div((place + 1) * from, to))",
        "end((place + 1) * from / to)", sizes((5, 7), (2, 3)),
    ),
    "the_mean_is_of_rows": Mistake(
        "kernels/AdaptiveAvgPooling.metal", "heights.size() / widths.size()", "heights.size()", sizes((7,), (3,))
    ),
    "gradients_are_not_divided": Mistake(
        "kernels/AdaptiveAvgPooling.metal", "sum += grad / depth / height / width;", "sum += grad / height / width;",
        sizes((5, 4, 7), (2, 3, 4)),
    ),
    "channels_are_taken_for_batches": Mistake(
        "kernels/AdaptiveAvgPooling.metal", "n = position.z / p.channels;", "n = position.z % p.channels;",
        sizes((4, 6), (2, 3)),
    ),
    "channels_last_is_forgotten": Mistake(
        "kernels/AdaptiveAvgPooling.metal", "row /= tensor.width;", "",
        lambda: pooling.test_channels_last(2),
    ),
    "input_and_output_are_swapped": Mistake(
        "operations/AdaptiveAvgPooling.mm", "mtl_setArgs(encoder, written, read, params);",
        "mtl_setArgs(encoder, read, written, params);", sizes((4, 6), (2, 3)),
    ),
    "storage_offset_of_the_input_is_forgotten": Mistake(
        "operations/AdaptiveAvgPooling.mm", "mtl_setArgs(encoder, written, read, params);",
        "mtl_setArgs(encoder, written, getMTLBufferStorage(read), params);", pooling.test_expanded_and_offset,
    ),
    "output_is_taken_for_contiguous": Mistake(
        "operations/AdaptiveAvgPooling.mm", "params.output = geometry(output, spatial);",
        "params.output = geometry(output.contiguous(), spatial);", pooling.test_out,
    ),
    "batch_is_taken_for_channels": Mistake(
        "operations/AdaptiveAvgPooling.mm", "params.channels = written.size(-spatial - 1);",
        "params.channels = written.size(0);", sizes((5, 7), (2, 3)),
    ),
}  # fmt: skip


def put_in_place(path: Path, source: str, copy: Path) -> None:
    """In place of what is loaded. A library that was loaded before would not be loaded again: host code has a name."""
    if path.suffix == ".metal":
        simulated_mps.load_kernels(path, source)
        return
    copy.write_text(source)
    registrations = [REGISTRATIONS[path.stem]] if path.stem in REGISTRATIONS else []
    torch.ops.load_library(simulated_mps.build_host_library(copy, *registrations))


@pytest.mark.parametrize("name", MISTAKES)
def test_it_is_caught(name, tmp_path):
    mistake = MISTAKES[name]
    path = MPS / mistake.file
    source = path.read_text()
    assert source.count(mistake.old) == 1
    try:
        put_in_place(path, source.replace(mistake.old, mistake.new), tmp_path / f"{name}.mm")
        with pytest.raises((AssertionError, RuntimeError)):  # the latter where kernels' loads and stores are checked
            mistake.test()
            torch.mps.synchronize()
    finally:
        put_in_place(path, source, tmp_path / f"{name}_mended.mm")
    mistake.test()
