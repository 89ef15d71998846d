"""Divide linear layers among grids of processes, so that no process holds inputs, weights or outputs as a whole.

| layer | processes | of X, W, Y each holds | elements moved by a process, forward and backward |
|---|---|---|---|
| Linear2d | q^2 | 1/q^2 | 3 (q-1)/q^2 (mk + kn) |
| Linear25d | d q^2 | X, Y 1/(d q^2), W 1/q^2 | 3 (q-1)/q^2 (mk/d + kn) + 2 (d-1)/d kn/q^2 |
| Linear3d | q^3 | 1/q^3 | (q-1)/q^3 (3 mk + 3 kn + 2 mn) |

Y[m, n] = X[m, k] W[k, n] + b. Of p processes, a broadcast of s elements moves (p-1) s in all, received by all but the
sender, and a sum on one of them (p-1) s, sent by all but it. In an all-gather of parts of s elements, each process
receives (p-1) s. In a reduce-scatter to such parts, each sends (p-1) s. An all-reduce of s elements moves what a
reduce-scatter and an all-gather of it move, 2 (p-1)/p s a process.

A model uses them in the place of nn.Linear. Each process makes them of whole layers, of which the first process's
weights count:

    mesh = init_device_mesh("cpu", (2, 2))  # 4 processes of torchrun; "cuda" where each has a GPU
    first = Linear2d(nn.Linear(256, 1024), mesh)
    second = Linear2d(nn.Linear(1024, 256), mesh)
    x = first.distribute_input(whole_x).to_local()  # this process's part; or a part that it has loaded itself
    y = second(F.gelu(first(x)))
    loss = F.mse_loss(second.gather_output(y), whole_target)
    loss.backward()  # first.weight.grad is a DTensor, divided as first.weight is

Of a part, a layer makes a part. Between layers, it goes through any function that works on each element by itself. Of a
DTensor, as distribute_input returns it, a layer makes a DTensor. These also go through others, such as layer norms, for
which DTensor sends what they need; each of its operators takes longer to start, most of all on meshes with three
dimensions. Of X, processes divide the first dimension and the last one, not those between them.
"""

from whet.parallel.grids.three_d import Linear3d
from whet.parallel.grids.two_and_half_d import Linear25d
from whet.parallel.grids.two_d import Linear2d

__all__ = ["Linear2d", "Linear3d", "Linear25d"]
