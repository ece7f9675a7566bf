"""The rules for findings: one module for each kind of fault, with its thresholds and their source."""

from kinetoscope.analyses.rules.autograd_in_inference import autograd_in_inference
from kinetoscope.analyses.rules.conversions import dtype_conversion, host_device_copies, layout_copy
from kinetoscope.analyses.rules.incomplete_trace import incomplete_trace
from kinetoscope.analyses.rules.input_wait import input_wait
from kinetoscope.analyses.rules.memory_growth import memory_growth
from kinetoscope.analyses.rules.python_bound import python_bound
from kinetoscope.analyses.rules.scalar_read import scalar_read
from kinetoscope.analyses.rules.single_tensor_optimizer import single_tensor_optimizer
from kinetoscope.analyses.rules.step_outlier import step_outlier
from kinetoscope.analyses.rules.tiny_operators import tiny_operators
from kinetoscope.analyses.rules.unfused_attention import unfused_attention
from kinetoscope.analyses.rules.zero_grad_fill import zero_grad_fill

RULES = (
    autograd_in_inference,
    dtype_conversion,
    host_device_copies,
    incomplete_trace,
    input_wait,
    layout_copy,
    memory_growth,
    python_bound,
    scalar_read,
    single_tensor_optimizer,
    step_outlier,
    tiny_operators,
    unfused_attention,
    zero_grad_fill,
)
