import pytest
import torch
from torch import nn

from grpo_core import cpu_products
from grpo_core.cpu_products import CpuLinear, product, use_fast_products

NEEDS_ONEDNN = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here")


@pytest.fixture(autouse=True)
def onednn(monkeypatch):
    monkeypatch.setattr(cpu_products, "prefers_onednn", lambda: True)
    monkeypatch.setattr(cpu_products, "MIN_PRODUCTS", 1)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@NEEDS_ONEDNN
@pytest.mark.parametrize("layout", ["plain", "first transposed", "second transposed", "both transposed"])
def test_products_of_any_strides(layout):
    a = drawn(70, 33) if "first" not in layout and "both" not in layout else drawn(33, 70).t()
    b = drawn(33, 50, seed=1) if "second" not in layout and "both" not in layout else drawn(50, 33, seed=1).t()
    bias = drawn(50, seed=2)
    expected = a.double() @ b.double()
    assert (product(a, b) - expected).abs().max() < 1e-4
    assert (product(a, b, bias) - expected - bias).abs().max() < 1e-4


@NEEDS_ONEDNN
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_fast_layer_has_the_outputs_and_gradients_of_the_layer_it_was(has_bias):
    results = []
    for is_fast in (False, True):
        torch.manual_seed(0)
        layer = nn.Sequential(nn.Linear(24, 40, bias=has_bias))
        if is_fast:
            use_fast_products(layer)
            assert type(layer[0]) is CpuLinear
        inputs = drawn(3, 7, 24).requires_grad_()
        output = layer(inputs)
        (output * drawn(3, 7, 40, seed=1)).sum().backward()
        results.append([output, inputs.grad, *(weight.grad for weight in layer.parameters())])
    for one, other in zip(*results, strict=True):
        assert one.shape == other.shape
        assert (one - other).norm() <= 1e-6 * other.norm()


def test_other_types_and_autocast_take_the_plain_layer():
    layer = nn.Sequential(nn.Linear(4, 4))
    use_fast_products(layer)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(drawn(2, 4)).dtype == torch.bfloat16
    assert layer.double()(drawn(2, 4).double()).dtype == torch.float64


def test_layers_with_a_class_of_their_own_stay_what_they_are():
    class Own(nn.Linear):
        pass

    layers = nn.Sequential(Own(2, 2), nn.Linear(2, 2))
    use_fast_products(layers)
    assert [type(layer) for layer in layers] == [Own, CpuLinear]


def test_where_the_machine_gains_nothing_the_model_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(cpu_products, "prefers_onednn", lambda: False)
    layers = nn.Sequential(nn.Linear(2, 2))
    use_fast_products(layers)
    assert type(layers[0]) is nn.Linear
