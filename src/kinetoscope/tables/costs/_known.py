"""All built-in formulas by the name of the operator, and the names that need none."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from kinetoscope.tables.costs import (
    attention,
    convolution,
    copying,
    fourier,
    indexing,
    linear_algebra,
    losses,
    matmul,
    normalisation,
    optimizers,
    ordering,
    pointwise,
    pooling,
    quantized,
    recurrent,
    reductions,
    sampling,
    sparse,
)
from kinetoscope.tables.costs._operator_names import MADE_OF_OTHERS, names

if TYPE_CHECKING:
    from kinetoscope.tables.costs._rule import Rule

# Those with formulas of their own stand behind the pointwise ones, which cover many names.
_FAMILIES = (
    pointwise, reductions, ordering, normalisation, losses, pooling, sampling, indexing, copying, fourier,
    linear_algebra, optimizers, quantized, recurrent, attention, convolution, matmul, sparse,
)  # fmt: skip

# What torch makes of other operators on the devices it ships kernels for, or what only tells something about a tensor.
_ALSO_MADE_OF_OTHERS = names(
    """
    _convert_weight_to_int4pack _convert_weight_to_int4pack_for_cpu _cudnn_init_dropout_state _empty_affine_quantized
    _empty_per_channel_affine_quantized _make_per_channel_quantized_tensor _nested_tensor_from_tensor_list matmul_backward
    mkldnn_linear_backward normal_functional rrelu_with_noise_functional _scaled_dot_product_attention_math_for_mps
    _nested_get_jagged_dummy _nested_get_lengths _nested_get_max_seqlen _nested_get_min_seqlen _nested_get_offsets
    _nested_get_ragged_idx _nested_compute_contiguous_strides_offsets
    _amp_foreach_non_finite_check_and_unscale _assert_async _assert_scalar _assert_tensor_metadata
    _coalesce _coalesced _coalesced_ _convert_indices_from_coo_to_csr _convert_indices_from_csr_to_coo
    _dimI _dimV _efficientzerotensor _embedding_bag_backward _euclidean_dist _functional_assert_async
    _functional_assert_scalar _functional_sym_constrain_range _functional_sym_constrain_range_for_size
    _fused_sdp_choice _has_same_storage_numel _linalg_check_errors _local_scalar_dense _make_dep_token
    _make_per_tensor_quantized_tensor _nested_tensor_from_mask _nested_tensor_size
    _nested_tensor_storage_offsets _nested_tensor_strides _new_zeros_with_same_feature_meta _nnz _print
    _resize_output _resize_output_ _safe_softmax _sparse_addmm _sparse_coo_tensor_with_dims
    _sparse_coo_tensor_with_dims_and_tensors _sparse_compressed_tensor_with_dims _sparse_log_softmax
    _sparse_softmax _sparse_sum _sparse_sum_backward _spdiags _to_dense _to_sparse _to_sparse_bsc
    _to_sparse_bsr _to_sparse_csc _to_sparse_csr _transformer_encoder_layer_fwd _unsafe_view
    _use_cudnn_ctc_loss _use_miopen_ctc_loss _validate_compressed_sparse_indices adaptive_avg_pool1d
    adaptive_avg_pool2d adaptive_avg_pool3d affine_grid_generator as_strided_ batch_norm_gather_stats
    batch_norm_gather_stats_with_counts binary_cross_entropy_with_logits cauchy dense_dim detach_
    embedding_renorm embedding_renorm_ empty empty_like empty_permuted empty_quantized empty_strided
    exponential fft_fftfreq fft_rfftfreq full full_like geometric index_put_ is_coalesced is_pinned
    is_same_size is_set_to lift linalg_eigvals linalg_matrix_exp linalg_pinv log_normal log_softmax
    new_empty new_empty_strided new_full new_ones new_zeros ones ones_like polygamma_ q_per_channel_axis
    q_per_channel_scales q_per_channel_zero_points q_scale q_zero_point qscheme rand rand_like randn
    randn_like random record_stream resize resize_ resize_as resize_as_ resize_as_sparse
    resize_as_sparse_ set set_ softmax sparse_compressed_tensor sparse_coo_tensor sparse_dim sparse_mask
    sparse_resize sparse_resize_ sparse_resize_and_clear sparse_resize_and_clear_ squeeze_ std_mean
    sym_constrain_range sym_constrain_range_for_size t_ transpose_ unsqueeze_ uniform zeros zeros_like
    """
)
# Ranges, collectives and the marks that torch's own machinery leaves in a trace.
_MACHINERY = (
    "autograd::",
    "torch::autograd::",
    "c10d::",
    "_c10d_functional::",
    "profiler::",
    "torch_dynamo",
    "rpc::",
)
_MARKS = frozenset({"detach", "record_param_comms", "[memory]", "[OutOfMemory]"})
# Kernels that Inductor and Triton made, and the calls that run them unrecorded: the names do not say what is computed.
_GENERATED = ("triton_", "cpp_fused_", "CompiledFunction", "Torch-Compiled Region", "## Call CompiledFxGraph")


@cache
def built_in() -> dict[str, Rule]:
    """The built-in rules by full name; made on first use."""
    found: dict[str, Rule] = {}
    for family in _FAMILIES:
        found.update(family.RULES)
    return found


def rule_of(name: str) -> Rule | None:
    """The built-in rule of an operator; a variant in place has that of the plain one."""
    return built_in().get(name) or built_in().get(name.removesuffix("_"))


def is_made_of_others(name: str) -> bool:
    """Whether an operator computes nothing but by calling operators that are recorded too."""
    space, _, base = name.rpartition("::")
    if space == "aten":
        return base in MADE_OF_OTHERS or base in _ALSO_MADE_OF_OTHERS
    return name in _MARKS or name.startswith(_MACHINERY)


def is_generated(name: str) -> bool:
    """Whether something runs kernels that a compiler made, of which nothing else is recorded."""
    return name.startswith(_GENERATED)


def is_range(name: str) -> bool:
    """Whether something that is recorded like an operator only marks a range, such as a function of TorchScript."""
    return "::" not in name and not is_generated(name)
