"""Energy: a loop takes more than the board at rest, no more than its cap, and its calls as long as the clock says."""

import pytest
import torch
from atlas.benchmarking import energy
from atlas.host.environment import device as described

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def meter(cuda):
    try:
        return energy.meter_of(cuda)
    except energy.Unmeasured as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("capture", [True, False])
def test_a_sum_s_joules_lie_between_rest_and_the_power_cap(clock, cuda, meter, figure, capture):
    # Memory binds it: a product in a loop meets the power cap, which holds the clock down by a quarter (H200).
    a, out = torch.randn(2**27, device=cuda), torch.empty(2**27, device=cuda)
    alone = clock.measure(lambda: torch.add(a, a, out=out), min_seconds=0.05).median_us
    rest = energy.at_rest(meter)
    loop = energy.DeviceLoop(lambda: torch.add(a, a, out=out), capture)
    assert loop.captured == capture
    try:
        found = energy.figures(energy.measure(loop, meter, 1.0, 3))
    finally:
        loop.close()
    uuid = str(torch.cuda.get_device_properties(cuda).uuid)
    cap = described(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}").get("power_cap_w")
    figure(f"{meter.how}: {found['joules']:.4g} J a sum of 2^27 elements, {found['watts']:.0f} W, at rest {rest:.0f} W")
    assert rest < found["watts"] and (cap is None or found["watts"] < 1.1 * cap)
    assert found["loop_us"] == pytest.approx(alone, rel=0.25), "nothing waits in between"
    assert found["joules_most"] < 1.2 * found["joules_least"]
