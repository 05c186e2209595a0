"""notebooks/lessons/vision.py: patches and back, and the classifier."""

import torch

from lessons.transformer import Sizes
from lessons.vision import VisionTransformer, from_patches, to_patches


def test_patches_are_squares_row_by_row():
    picture = torch.arange(48.0).view(1, 1, 6, 8)
    patches = to_patches(picture, 2)
    assert patches.shape == (1, 12, 4)
    assert patches[0, 0].tolist() == [0, 1, 8, 9]
    assert patches[0, 1].tolist() == [2, 3, 10, 11]
    assert patches[0, 4].tolist() == [16, 17, 24, 25]


def test_patches_can_be_put_together_again():
    pictures = torch.randn(3, 2, 6, 9)
    patches = to_patches(pictures, 3)
    assert patches.shape == (3, 6, 18)
    assert torch.equal(from_patches(patches, 3, (2, 6, 9)), pictures)


def test_the_classifier_knows_where_a_patch_is():
    torch.manual_seed(0)
    model = VisionTransformer(6, 18, 5, Sizes(12, 3, 20, 1, dropout=0.0)).eval()
    patches = torch.randn(2, 6, 18)
    assert model(patches).shape == (2, 5)
    assert not torch.allclose(model(patches), model(patches.flip(1)), atol=1e-4)
