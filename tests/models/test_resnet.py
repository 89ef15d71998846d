import torch
import torch.nn.functional as F

from whet.models.resnet import BasicBlock, ResNet


def test_shape_and_size():
    model = ResNet().eval()
    assert model(torch.randn(2, 1, 64, 64)).shape == (2, 10)
    assert 2.5e6 < sum(p.numel() for p in model.parameters()) < 3.5e6


def test_block_is_convolutions_norms_and_a_shortcut():
    torch.manual_seed(0)
    block = BasicBlock(4, 8, stride=2)
    block(torch.randn(4, 4, 8, 8))  # so that the running statistics are not the initial ones
    block.eval()
    x = torch.randn(2, 4, 8, 8)

    def norm(y, bn):
        scale = bn.weight / torch.sqrt(bn.running_var + bn.eps)
        return y * scale[:, None, None] + (bn.bias - bn.running_mean * scale)[:, None, None]

    inner = norm(F.conv2d(x, block.conv1.weight, stride=2, padding=1), block.bn1).relu()
    inner = norm(F.conv2d(inner, block.conv2.weight, padding=1), block.bn2)
    shortcut = norm(F.conv2d(x, block.shortcut[0].weight, stride=2), block.shortcut[1])
    torch.testing.assert_close(block(x), (inner + shortcut).relu(), rtol=1e-4, atol=1e-5)


def test_export():
    model = ResNet().eval()
    x = torch.randn(2, 1, 64, 64)
    program = torch.export.export(model, (x,), strict=False)
    torch.testing.assert_close(program.module()(x), model(x))
