from __future__ import annotations

import pytest
import torch

from handful import HandfulError
from handful.embedders.backbones import build_backbone, for_inference, to_input
from handful.embedders.conv4 import LeanMaxPool2d


@pytest.mark.parametrize(
    ("size", "channels", "pool", "dim"),
    [(28, 1, False, 64), (32, 3, False, 256), (32, 3, True, 64), (64, 3, False, 1024), (84, 3, False, 1600),
     (84, 3, True, 256), (37, 1, False, 256)],
)  # fmt: skip
def test_dimension(size, channels, pool, dim):
    backbone = build_backbone("conv4", channels, size, average_pool=pool).eval()
    vectors = backbone(to_input(torch.zeros(2, size, size, channels, dtype=torch.uint8)))
    assert backbone.dim == dim
    assert vectors.shape == (2, dim)


def test_parameters_are_those_of_the_paper():
    """Four 3 x 3 convolutions of 64 filters, each with batch norm."""
    backbone = build_backbone("conv4", 3, 84)
    convolutions = 64 * 9 * (3 + 3 * 64)
    assert sum(p.numel() for p in backbone.parameters()) == convolutions + 4 * 2 * 64


def test_input_is_channels_last_in_minus_one_to_one():
    images = torch.randint(0, 256, (5, 28, 30, 3), dtype=torch.uint8)
    images[0, 0, 0], images[0, 0, 1] = 0, 255
    x = to_input(images)
    assert x.shape == (5, 3, 28, 30)
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert x.min() == -1
    assert x.max() == 1
    torch.testing.assert_close(x[1, 2, 3, 4], images[1, 3, 4, 2] / 127.5 - 1)


def test_in_evaluation_an_image_does_not_see_the_others():
    backbone = build_backbone("conv4", 1, 28).eval()
    images = torch.randn(6, 1, 28, 28)
    torch.testing.assert_close(backbone(images)[:1], backbone(images[:1]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("conv4", 1, 27), "28 x 28 or more, got 27 x 27"),
        (("conv4", 2, 28), "1 or 3 channels, got 2"),
        (("resnet12", 3, 15), "16 x 16 or more, got 15 x 15"),
        (("resnet12", 4, 28), "1 or 3 channels, got 4"),
        (("conv9", 1, 28), "unknown backbone 'conv9': choose one of conv4, resnet12"),
    ],
)
def test_wrong_input_is_said_in_a_sentence(arguments, sentence):
    with pytest.raises(HandfulError, match=sentence):
        build_backbone(*arguments)


def test_average_pool_needs_something_to_pool():
    with pytest.raises(HandfulError, match="32 x 32 or more"):
        build_backbone("conv4", 1, 28, average_pool=True)


def test_folding_batch_norm_changes_nothing_but_the_speed():
    torch.manual_seed(0)
    backbone = build_backbone("conv4", 3, 32)
    for module in backbone.modules():
        if isinstance(module, torch.nn.BatchNorm2d):  # as if trained
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
            torch.nn.init.normal_(module.weight)
            torch.nn.init.normal_(module.bias)
    images = torch.randn(5, 3, 32, 32)
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    folded = for_inference(backbone)
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in folded.modules())
    with torch.inference_mode():
        torch.testing.assert_close(folded(images), backbone.eval()(images), atol=1e-5, rtol=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("size", [6, 7])
def test_the_lean_pooling_is_max_pooling(size, layout):
    images = torch.randn(3, 4, size, size).contiguous(memory_format=layout).requires_grad_()
    weights = torch.randn(3, 4, 3, 3)
    answers = [pool(images) for pool in (LeanMaxPool2d(), torch.nn.MaxPool2d(2))]
    assert torch.equal(*answers)
    gradients = [torch.autograd.grad((answer * weights).sum(), images)[0] for answer in answers]
    assert torch.equal(*gradients)
    assert torch.autograd.gradcheck(LeanMaxPool2d(), images.double().detach().requires_grad_())
