from tests.support.messages import check_messages
from tests.support.simulated_accelerator import OnDevice, OnXpu, cuda, xpu
from tests.support.simulated_nvml import no_driver, nvidia

__all__ = ["cuda", "no_driver", "nvidia", "xpu"]


def test_what_is_refused_or_warned_of_is_said_in_the_stored_words(request):
    """The calls take a device by `request.getfixturevalue`, from where they need one."""
    check_messages(__file__, simulated=request.getfixturevalue, OnDevice=OnDevice, OnXpu=OnXpu)
