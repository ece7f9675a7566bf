from hypothesis import given

from kinetoscope.ledger.parts import parts_of_units
from kinetoscope.tables.host.units_of_work import Unit, units_of_work
from tests.support.any_trace import any_traces


@given(any_traces())
def test_parts_add_up_to_each_unit(trace):
    work = units_of_work(trace)
    if work.unit is not Unit.RECORDING:
        assert sum(parts_of_units(work).values()).tolist() == work.duration_ns.tolist()
