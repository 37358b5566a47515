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
def test_a_product_s_joules_lie_between_rest_and_the_power_cap(clock, cuda, meter, figure, capture):
    a = torch.randn(4096, 4096, device=cuda, dtype=torch.float16)
    alone = clock.measure(lambda: torch.mm(a, a), min_seconds=0.05).median_us
    rest = energy.at_rest(meter)
    loop = energy.DeviceLoop(lambda: torch.mm(a, a), capture)
    assert loop.captured == capture
    try:
        found = energy.figures(energy.measure(loop, meter, 1.0, 3))
    finally:
        loop.close()
    uuid = str(torch.cuda.get_device_properties(cuda).uuid)
    cap = described(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}").get("power_cap_w")
    figure(
        f"{meter.how}: {found['joules']:.4g} J a product of 4096 cubed, {found['watts']:.0f} W, at rest {rest:.0f} W"
    )
    assert rest < found["watts"] and (cap is None or found["watts"] < 1.1 * cap)
    assert found["loop_us"] == pytest.approx(alone, rel=0.25), "power may hold the clock down; nothing waits in between"
    assert found["joules_most"] < 1.2 * found["joules_least"]
