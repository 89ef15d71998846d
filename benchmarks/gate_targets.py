"""What the gate is tried on: a matrix product again and again, and the same with 2, 3 and 5 % more of them."""

import torch
from torch import Tensor, nn

_PRODUCTS = 100  # so that one percent is one product


class Products(nn.Module):
    def __init__(self, num_products: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.num_products = num_products
        self.weight = nn.Parameter(torch.linalg.qr(torch.randn(256, 256))[0])  # keeps lengths, so nothing overflows

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.num_products):
            x = x @ self.weight
        return x


def same() -> tuple[nn.Module, Tensor]:
    return Products(_PRODUCTS), torch.randn(256, 256)


def slower_2() -> tuple[nn.Module, Tensor]:
    return Products(_PRODUCTS + 2), torch.randn(256, 256)


def slower_3() -> tuple[nn.Module, Tensor]:
    return Products(_PRODUCTS + 3), torch.randn(256, 256)


def slower_5() -> tuple[nn.Module, Tensor]:
    return Products(_PRODUCTS + 5), torch.randn(256, 256)
