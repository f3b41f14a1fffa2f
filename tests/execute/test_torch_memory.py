"""Reads and writes by collectives of tensors with other memory layouts."""

import pytest

torch = pytest.importorskip("torch")

from gradweave.execute.torch_distributed.memory import (  # noqa: E402
    as_stored,
    plain,
    read,
    written,
)


def test_any_thread_may_change_a_plain_tensor():
    with torch.inference_mode():
        inference = torch.zeros(2, 3).T
    parameter = torch.nn.Parameter(torch.zeros(3, 2))
    for tensor in (inference, parameter):
        for inside in (False, True):
            with torch.inference_mode(inside):
                made = plain(tensor)
            made.add_(1)
            assert not made.is_inference() and not made.requires_grad
            assert made.stride() == tensor.stride() and made.data_ptr() == tensor.data_ptr()
        assert tensor.sum() == 12
    assert parameter._version == 0  # gloo does not count either
    with torch.inference_mode():
        conjugate = torch.tensor([1 + 2j]).conj()
    assert plain(conjugate).tolist() == [1 - 2j]
    assert plain(conjugate.imag).tolist() == [-2.0]


def test_elements_in_order_or_as_they_are_stored():
    base = torch.arange(6.0)
    turned = base.view(2, 3).T
    assert read(turned).tolist() == [0, 3, 1, 4, 2, 5] and read(base).data_ptr() == base.data_ptr()
    with written(turned) as flat:
        flat += torch.tensor([10.0, 20, 30, 40, 50, 60])
    assert base.tolist() == [10, 31, 52, 23, 44, 65]
    with as_stored(turned[1:]) as flat:  # four elements from the second one on
        assert flat.tolist() == [31, 52, 23, 44]
        flat.zero_()
    assert base.tolist() == [10, 0, 0, 0, 0, 65]


def test_an_expanded_tensor_is_written_once():
    """A layout with which gloo would write past the end of its memory."""
    base = torch.arange(5.0)
    with as_stored(base[3:].expand(2, 2)) as flat:
        assert flat.tolist() == [3, 4, 3, 4]
        flat *= 2
    assert base.tolist() == [0, 1, 2, 6, 8]
    with as_stored(base[4:].expand(3)) as flat:
        flat += 1
    assert base.tolist() == [0, 1, 2, 6, 9]
