"""The costs of real programs, and that hardly any of their time is spent where nothing is known."""

import functools
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from kinetoscope.tables import costs
from kinetoscope.tables.costs.columns import costs_of
from kinetoscope.tables.costs.evaluate import is_made_of_others, rule_of
from kinetoscope.tables.costs.flops import covered_percent
from tests.support import warm_python
from tests.support.counting import Recorded, recorded
from tests.support.programs import PROGRAMS

ROOT = Path(__file__).parents[3]
# Operators of programs whose cost cannot be known, with the reason.
UNCOVERED = {
    "kinetoscope_tests::scaled": "a custom operator without a registered formula",
    "kinetoscope_tests_library::root_of_sum": "a custom operator without a registered formula",
    "kinetoscope_tests_library::negate_": "a custom operator without a registered formula",
    "CompiledFunction": "kernels that a compiler made",
    "Torch-Compiled Region": "kernels that a compiler made",
    "CompiledFunctionBackward": "kernels that a compiler made",
    "linalg_eig": "a decomposition that models hardly use",
    "linalg_lstsq": "a solver that models hardly use",
    "addmm": "a sparse matrix given by coordinates",
    "mm": "a sparse matrix given by coordinates",
    "linear": "a subclass whose sizes are not recorded, in a mode that is not recorded",
    "matmul": "a subclass whose sizes are not recorded, in a mode that is not recorded",
}


@functools.cache
def of_program(name: str) -> Recorded:
    """Records a program once for all tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = PROGRAMS[name]()
        run()
        return recorded(run)


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_operation_of_a_program_is_counted_once(name):
    found = of_program(name)
    trace = found.trace
    spans, counted = trace.columns("spans"), costs_of(trace).counted
    flops, parent = spans["flops"], spans["parent"]
    # Whatever counts has nothing that counts above it, so each table adds up to the same.
    above = parent.copy()
    while (above >= 0).any():
        rows = np.flatnonzero(counted.counts & (above >= 0))
        assert not counted.counts[above[rows]].any()
        above = np.where(above >= 0, parent[above], -1)
    total = int(flops[flops > 0].sum())
    assert sum(row["flops"] or 0 for row in trace.table("flops").to_pylist()) == total
    by_name = trace.table("ops").to_pylist()
    names = [trace.strings[name] for name in spans["name"].tolist()]
    null = {row["name"] for row in by_name if row["flops"] is None}
    hidden = sum(max(0, each) for each, name in zip(flops.tolist(), names, strict=True) if name in null)
    assert sum(row["flops"] or 0 for row in by_name) == total - hidden
    assert total == found.flops


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_not_covered_is_known_to_be_so(name):
    # The regions of compiled functions are numbered.
    assert {
        label.partition(":")[0] if label.startswith("Torch-") else label for label in of_program(name).unknown
    } <= set(UNCOVERED)


def test_nearly_all_operator_time_is_covered():
    # Custom operators aside, which the list above names, and compiled functions, whose kernels have no formula.
    shares = {name: covered_percent(of_program(name).trace) for name in PROGRAMS if "compiled" not in name}
    full = [name for name, share in shares.items() if share is None or share > 99]
    assert len(full) >= 0.9 * len(shares), {name: share for name, share in shares.items() if name not in full}


@pytest.mark.parametrize("name", ["transformer_training", "mlp_training"])
def test_the_products_of_a_training_step_are_what_flop_counter_says(name):
    run = PROGRAMS[name]()
    run()
    with FlopCounterMode(display=False) as counter:
        run()
    products = sum(
        of_program(name).by_name.get(label, 0) for label in ("mm", "addmm", "bmm", "baddbmm", "linear")
    )
    assert products == counter.get_total_flops()


def test_numbers_of_torch_for_the_operators_it_knows():
    def run():
        x = torch.nn.functional.conv2d(torch.ones(2, 3, 9, 9), torch.ones(4, 3, 3, 3))
        x = x * x + x
        return (
            torch.mm(torch.ones(3, 4), torch.ones(4, 5)),
            torch.addmm(torch.ones(5), torch.ones(3, 4), torch.ones(4, 5)),
            x,
        )

    with torch.profiler.profile(with_flops=True, record_shapes=True) as theirs:
        run()
    expected = {
        event.key.removeprefix("aten::"): event.flops for event in theirs.key_averages() if event.flops
    }
    found = recorded(run).by_name
    assert {name: found[name] for name in expected} == expected


# Operators of ATen that no formula covers: nobody's models run them, or a trace cannot say what they do.
LEFT_OUT = """
    __irshift__ _cholesky_solve_helper _compute_linear_combination _conj_copy _conv_depthwise2d
    _convert_weight_to_int4pack_for_cpu _cslt_compress _cslt_sparse_mm_search _cufft_clear_plan_cache
    _cufft_get_plan_cache_max_size _cufft_get_plan_cache_size _cufft_set_plan_cache_max_size _dirichlet_grad
    _dyn_quant_matmul_4bit _dyn_quant_pack_4bit_weight _embedding_bag_per_sample_weights_backward
    _empty_per_channel_affine_quantized _fake_quantize_learnable_per_channel_affine
    _fake_quantize_learnable_per_channel_affine_backward _fake_quantize_learnable_per_tensor_affine
    _fake_quantize_learnable_per_tensor_affine_backward _flash_attention_forward_no_dropout_inplace _foobar
    _foreach_mm _fused_moving_avg_obs_fq_helper_functional _fw_primal_copy _grid_sampler_2d_cpu_fallback
    _grid_sampler_2d_cpu_fallback_backward _histogramdd_bin_edges _histogramdd_from_bin_cts
    _histogramdd_from_bin_tensors _indices_copy _linalg_eigvals _lstm_mps _make_dep_token _make_dual_copy
    _make_per_channel_quantized_tensor _mkldnn_reshape _mkldnn_transpose _mkldnn_transpose_ _mps_convolution
    _mps_convolution_transpose _native_batch_norm_legit_functional _neg_view_copy
    _nested_compute_contiguous_strides_offsets _nested_from_padded _nested_from_padded_and_nested_example
    _nested_from_padded_tensor _nested_select_backward _nested_sum_backward _nested_tensor_from_mask_left_aligned
    _nested_tensor_softmax_with_shape _nested_view_from_buffer_copy _nested_view_from_jagged_copy
    _nnpack_spatial_convolution _pdist_backward _pdist_forward _philox_key_fold_in _philox_key_split
    _philox_normal _philox_normal_ _philox_uniform _philox_uniform_ _print _reshape_alias_copy
    _scaled_dot_product_attention_math_for_mps _segment_reduce_backward _slow_conv2d_backward _slow_conv2d_forward
    _sobol_engine_draw _sobol_engine_ff_ _sobol_engine_initialize_state_ _sobol_engine_scramble_
    _sparse_broadcast_to_copy _sparse_bsc_tensor_unsafe _sparse_bsr_tensor_unsafe _sparse_csr_prod _sparse_csr_sum
    _sparse_log_softmax_backward_data _sparse_mask_projection _sparse_semi_structured_apply
    _sparse_semi_structured_apply_dense _sparse_semi_structured_tile _sparse_softmax_backward_data _spdiags
    _spsolve _standard_gamma_grad _to_sparse_bsc _to_sparse_bsr _to_sparse_semi_structured
    _triton_multi_head_attention _triton_scaled_dot_attention
    _upsample_bicubic2d_aa_backward _upsample_bilinear2d_aa_backward
    _upsample_lanczos2d_aa _upsample_lanczos2d_aa_backward _values_copy adaptive_avg_pool3d_backward addr addr_
    bartlett_window binomial blackman_window cauchy ccol_indices_copy cholesky cholesky_inverse cholesky_solve
    col_indices_copy conv_depthwise3d conv_tbc copy_sparse_to_sparse copy_sparse_to_sparse_ crow_indices_copy
    cudnn_affine_grid_generator cudnn_affine_grid_generator_backward cudnn_convolution_add_relu
    cudnn_grid_sampler_backward diagonal_copy fbgemm_linear_fp16_weight fbgemm_linear_fp16_weight_fp32_activation
    fbgemm_linear_int8_weight fbgemm_linear_int8_weight_fp32_activation fbgemm_linear_quantize_weight
    fbgemm_pack_gemm_matrix_fp16 fbgemm_pack_quantized_matrix fractional_max_pool2d fractional_max_pool2d_backward
    fractional_max_pool3d fractional_max_pool3d_backward from_file geometric geqrf glu_backward_jvp glu_jvp
    hash_tensor histogram indices_copy kaiser_window linalg_eig linalg_householder_product linalg_ldl_factor_ex
    linalg_ldl_solve linalg_lstsq linalg_lu linear_backward log_normal lstm_mps_backward lu_unpack
    max_pool2d_backward max_unpool3d miopen_convolution_add_relu miopen_convolution_relu
    miopen_convolution_transpose mkldnn_adaptive_avg_pool2d mkldnn_adaptive_avg_pool2d_backward
    mkldnn_linear_backward_input mkldnn_linear_backward_weights mkldnn_max_pool2d_backward mkldnn_max_pool3d
    mkldnn_max_pool3d_backward mkldnn_reorder_conv2d_weight mkldnn_reorder_conv3d_weight mps_convolution_backward
    mps_convolution_transpose_backward normal_functional ormqr put put_ qscheme quantized_batch_norm quantized_gru
    quantized_gru_cell quantized_lstm quantized_lstm_cell quantized_max_pool1d quantized_max_pool3d
    quantized_rnn_relu_cell quantized_rnn_tanh_cell random row_indices_copy rrelu_with_noise_functional set
    slow_conv3d_forward slow_conv_dilated2d slow_conv_dilated3d slow_conv_transpose2d slow_conv_transpose3d
    triangular_solve values_copy view_as_complex_copy view_as_real_copy
"""


same_torch = pytest.mark.skipif(
    torch.__version__.partition("+")[0]
    not in Path(costs.__file__).with_name("operator_tags.txt").read_text().partition("\n")[0],
    reason="the lists of names were made with another release of torch",
)


@same_torch
def test_all_other_operators_of_this_torch_are_covered():
    names = {
        name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")
    }
    lacking = {
        name.removeprefix("aten::")
        for name in names
        if rule_of(name) is None
        and not is_made_of_others(name)
        and not is_made_of_others(name.removesuffix("_"))
    }
    left_out = {name for name in lacking if name.startswith(("_test_", "special_"))}
    assert lacking - left_out <= set(LEFT_OUT.split())


@same_torch
def test_the_generated_names_are_those_of_this_torch():
    tool = ROOT / "tools" / "generate_operator_names.py"
    warm_python.run(tool, "--check").check_returncode()
