from hypothesis import given

from kinetoscope.ledger.ledger import raw_ledger
from kinetoscope.ledger.parts import parts_of_units
from kinetoscope.tables.host.units_of_work import Unit
from tests.support.any_trace import any_traces


@given(any_traces())
def test_parts_add_up_to_each_unit(trace):
    for ledger in raw_ledger(trace):
        if ledger.work.unit is not Unit.RECORDING:
            assert sum(parts_of_units(ledger).values()).tolist() == ledger.duration_ns.tolist()
