"""A device that is not there: tensors that were brought to "cuda" lie on the host and are told apart from the host's.

What a GPU refuses is refused: operations of tensors of both sides, NumPy's view of a device's tensor, kernels of the
device on the host's tensors, or in a thread whose current device is another one. The CUDA build's kernels run on host
threads (`dispatch.emulation`). The device of a rank has the rank as its index, while every thread begins with device 0.
Streams are not imitated: all work is done as it comes.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from mpi4py import MPI
from torch.autograd.graph import _engine_run_backward
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hpcgnn.comm.world import World
from hpcgnn.graph import columns as input_rows
from hpcgnn.native import dispatch
from hpcgnn.static import features

DEVICE = torch.device("cuda", MPI.COMM_WORLD.rank)
ACROSS = ("aten::copy_", "aten::_foreach_copy_", "aten::_to_copy", "aten::detach")  # may have tensors of both sides
NEW_ZEROS = torch.ops.aten.new_zeros
INDEXED = ("aten::index", "aten::index_put", "aten::index_put_")  # take indices of the host as well

_there: dict[int, StorageWeakRef] = {}  # storages of the device


def is_there(tensor: torch.Tensor) -> bool:
    """Whether a tensor is of the device."""
    found = _there.get(tensor.untyped_storage()._cdata)
    return found is not None and not found.expired()


def _put_there(tensor: torch.Tensor) -> None:
    storage = tensor.untyped_storage()
    _there[storage._cdata] = StorageWeakRef(storage)


class _Move(torch.autograd.Function):
    """A copy on the other side, or on the same."""

    @staticmethod
    def forward(ctx, tensor, there: bool):
        ctx.there = is_there(tensor)
        with _Paused():
            moved = tensor.clone()
        if there:
            _put_there(moved)
        return moved

    @staticmethod
    def backward(ctx, gradient):
        return _Move.apply(gradient, ctx.there), None


_paused = threading.local()


class _Paused:
    def __enter__(self):
        self._before = getattr(_paused, "on", False)
        _paused.on = True

    def __exit__(self, *error):
        _paused.on = self._before


@contextmanager
def recording() -> Iterator[None]:
    """Refuse copies between host and device meanwhile."""
    _paused.records = True
    try:
        yield
    finally:
        _paused.records = False


def _refuse_in_recording() -> None:
    if getattr(_paused, "records", False):
        raise AssertionError("a copy between host and device, which no graph can hold")


def _is_cuda(device) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _within_device_work() -> bool:
    """What PyTorch's own code makes anew then is of the device, whatever it asks for."""
    return getattr(_paused, "with_device", False) or torch._C._current_autograd_node() is not None


class _Operations(TorchDispatchMode):
    """Follows which side results lie on, below autograd."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        asked = kwargs.get("device")
        if _is_cuda(asked):
            kwargs["device"] = torch.device("cpu")
        if getattr(_paused, "on", False):
            return func(*args, **kwargs)
        told = (args[0], args[2:], kwargs) if func._schema.name in INDEXED else (args, kwargs)
        tensors = [leaf for leaf in tree_leaves(told) if isinstance(leaf, torch.Tensor)]
        sides = {is_there(tensor) for tensor in tensors if tensor.dim()}
        if len(sides) == 2 and func._schema.name not in ACROSS:
            found = [("device" if is_there(one) else "host", *one.shape) for one in tensors]
            raise RuntimeError(f"{func}: expected all tensors to be on the same device, got {found}")
        if len(sides) == 2:
            _refuse_in_recording()
        there = _is_cuda(asked)
        # PyTorch's own derivatives ask new_zeros for the real tensor's device.
        explicit = asked is not None and getattr(_paused, "explicit", False) and func.overloadpacket is not NEW_ZEROS
        if not there and not explicit:
            there = any(map(is_there, tensors)) if tensors else _within_device_work()
        held = {tensor.untyped_storage()._cdata for tensor in tensors}
        result = func(*args, **kwargs)
        if there:
            for leaf in tree_leaves(result):
                if isinstance(leaf, torch.Tensor) and leaf.untyped_storage()._cdata not in held:
                    _put_there(leaf)
        return result


class _Calls(TorchFunctionMode):
    """What Python asks of tensors: where they are, and to be elsewhere."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        kwargs.pop("pin_memory", None)
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if first is not None and func in _ASKED:
            return _ASKED[func](first, *args[1:], **kwargs)
        if func in (torch.Tensor.backward, torch.autograd.backward):
            return self._backward(*args, **kwargs)
        asked = kwargs.get("device")
        if _is_cuda(asked) and func in (torch.tensor, torch.as_tensor):
            _refuse_in_recording()
        if _is_cuda(asked) and func is not torch._C._nn._parse_to:
            kwargs["device"] = torch.device("cpu")
            result = func(*args, **kwargs)
            return _Move.apply(result, True) if isinstance(result, torch.Tensor) else result
        before = getattr(_paused, "with_device", False), getattr(_paused, "explicit", False)
        _paused.explicit = asked is not None
        _paused.with_device = any(
            isinstance(one, torch.Tensor) and is_there(one) for one in tree_leaves((args, kwargs))
        )
        try:
            return func(*args, **kwargs)
        finally:
            _paused.with_device, _paused.explicit = before

    def _backward(self, tensors, gradients=None, *_, **kwargs):
        """Within the mode, as the project's own functions are called then."""
        tensors = (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors)
        gradients = kwargs.get("gradient", gradients)
        if gradients is None:
            gradients = [torch.ones_like(one) for one in tensors]
        elif isinstance(gradients, torch.Tensor):
            gradients = [gradients]
        with self:
            _engine_run_backward(
                tensors, tuple(gradients), False, False, (), allow_unreachable=True, accumulate_grad=True
            )


def _to(tensor, *args, **kwargs):
    """Tensor.to."""
    kwargs.pop("non_blocking", None)
    copy = kwargs.pop("copy", False)
    given = [*args, *kwargs.values()]
    device = next((torch.device(one) for one in given if isinstance(one, torch.device | str)), None)
    dtype = next((one for one in given if isinstance(one, torch.dtype)), None)
    like = next((one for one in given if isinstance(one, torch.Tensor)), None)
    if like is not None:
        device, dtype = like.device, like.dtype
    found = tensor if dtype is None or dtype == tensor.dtype else tensor.type(dtype)
    there = is_there(tensor) if device is None else device.type == "cuda"
    if there != is_there(found):
        _refuse_in_recording()
        return _Move.apply(found, there)
    return _Move.apply(found, there) if copy and found is tensor else found


def _numpy(tensor, *args, **kwargs):
    if is_there(tensor):
        raise TypeError(f"can't convert {DEVICE} device type tensor to numpy")
    return torch._C.TensorBase.numpy(tensor, *args, **kwargs)


def _array(tensor, dtype=None):
    found = _numpy(tensor)
    return found if dtype is None else found.astype(dtype, copy=False)


def _new_tensor(tensor, data, dtype=None):
    return _to(torch.tensor(data, dtype=dtype or tensor.dtype), DEVICE if is_there(tensor) else torch.device("cpu"))


_ASKED = {
    torch.Tensor.new_tensor: _new_tensor,
    torch.Tensor.device.__get__: lambda tensor: DEVICE if is_there(tensor) else torch.device("cpu"),
    torch.Tensor.is_cuda.__get__: is_there,
    torch.Tensor.to: _to,
    torch.Tensor.cpu: lambda tensor: _to(tensor, torch.device("cpu")),
    torch.Tensor.cuda: lambda tensor: _to(tensor, DEVICE),
    torch.Tensor.numpy: _numpy,
    torch.Tensor.__array__: _array,
    torch.Tensor.pin_memory: lambda tensor: tensor,
}


class _Kernels:
    """The emulated kernels, which refuse the host's tensors."""

    def __init__(self):
        self._module = importlib.import_module("hpcgnn_native.emulated")

    def __getattr__(self, name):
        kernel = getattr(self._module, name)
        if not callable(kernel):
            return kernel

        def call(*args):
            wrong = [number for number, one in enumerate(args) if isinstance(one, torch.Tensor) and not is_there(one)]
            if wrong:
                raise TypeError(f"{name}: arguments {wrong} are tensors of the host")
            return kernel(*args)

        return call


def _backend(tensor):
    if not is_there(tensor):
        raise ValueError("no kernels for a tensor of the host")
    if _current_device() != DEVICE.index:
        raise ValueError(f"tensor on {DEVICE}, but this thread's device is {_current_device()}")
    return _Kernels(), 0


def _current_device() -> int:
    return getattr(_paused, "device", 0)


def _set_device(device) -> None:
    _paused.device = device.index if isinstance(device, torch.device) else int(device)


def _bind_device(world: World) -> torch.device:
    """World._bind_device."""
    _set_device(DEVICE)
    return DEVICE


@contextmanager
def _current(device) -> Iterator[None]:
    """torch.cuda.device."""
    before = _current_device()
    _set_device(device)
    try:
        yield
    finally:
        _set_device(before)


def _record_stream(tensor, stream):
    if not is_there(tensor):
        raise NotImplementedError("record_stream of a tensor of the host")


class _Stream:
    """All is done already."""

    cuda_stream = 0

    def __init__(self, device=None):
        self.device = DEVICE if device is None else torch.device(device)

    def synchronize(self):
        """Nothing to wait for."""

    def wait_stream(self, other):
        """As for ``synchronize``."""


@contextmanager
def pretended_device() -> Iterator[None]:
    """Meanwhile every new World has the device; also threads that begin meanwhile see it."""
    begin = threading.Thread.run

    def run(thread):
        with _Operations(), _Calls():
            begin(thread)

    stub = {
        "Stream": _Stream, "current_stream": _Stream, "default_stream": _Stream, "current_device": _current_device,
        "stream": lambda stream: _current(stream.device), "device": _current, "set_device": _set_device,
        "mem_get_info": lambda device: (1 << 40, 1 << 40), "is_available": lambda: True, "device_count": lambda: 1,
        "get_device_properties": lambda device: SimpleNamespace(uuid="pretended", name="pretended"),
        "synchronize": lambda device=None: None, "max_memory_allocated": lambda device=None: 0,
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name, value in stub.items():
            patch.setattr(torch.cuda, name, value)
        for name in ("range_push", "range_pop"):
            patch.setattr(torch.cuda.nvtx, name, lambda *_: None)
        patch.setattr(torch.Tensor, "record_stream", _record_stream)
        for module in (input_rows, features):
            patch.setattr(module, "seen_from", lambda device, table: table.to(device))
        patch.setattr(World, "_bind_device", _bind_device)
        patch.setattr(dispatch, "backend", _backend)
        patch.setattr(threading.Thread, "run", run)
        with _Operations(), _Calls(), _current(_current_device()):
            yield
    _there.clear()
