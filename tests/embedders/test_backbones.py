"""What is true of every backbone."""

from __future__ import annotations

import math

import pytest
import torch

from handful.embedders.backbones import BACKBONES, backbone_options, build_backbone, for_inference


@pytest.mark.parametrize("name", BACKBONES)
def test_vectors_have_the_length_and_the_shape_that_it_says(name):
    backbone = build_backbone(name, 3, 32).eval()
    assert backbone(torch.randn(2, 3, 32, 32)).shape == (2, backbone.dim)
    assert len(backbone.feature_shape) == 3
    assert math.prod(backbone.feature_shape) == backbone.dim


@pytest.mark.parametrize("name", BACKBONES)
def test_in_evaluation_an_image_does_not_see_the_others_and_folding_changes_nothing(name):
    torch.manual_seed(0)
    backbone, images = build_backbone(name, 3, 32), torch.randn(5, 3, 32, 32)
    backbone(images)  # moves the running statistics
    backbone.eval()
    with torch.inference_mode():
        answers = backbone(images)
        torch.testing.assert_close(backbone(images[:1]), answers[:1], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(for_inference(backbone)(images), answers, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", BACKBONES)
def test_every_parameter_gets_a_gradient_and_options_have_defaults(name):
    backbone = build_backbone(name, 3, 32, **backbone_options(name)).train()
    backbone(torch.randn(4, 3, 32, 32)).square().sum().backward()
    assert all(value.grad is not None and value.grad.isfinite().all() for value in backbone.parameters())
