import errno
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from grpo_core.config import TrainConfig
from grpo_core.ranks import PeerFailed
from sweeps.failures import blame_order, cause_of, describe, is_port_in_use


def config_error():
    try:
        TrainConfig.model_validate({"num_steps": 0})
    except ValueError as error:
        return error


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "out_of_memory"),
        (MemoryError(), "out_of_memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "out_of_memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "out_of_memory"),
        (ValueError("algorithm.group_size=1: a group needs at least 2"), "config"),
        (config_error(), "config"),
        (FileNotFoundError(errno.ENOENT, "No such file", "problems.jsonl"), "config"),
        (PermissionError(errno.EACCES, "Permission denied"), "config"),
        (OSError(errno.ENOSPC, "No space left on device"), "disk"),
        (OSError(errno.EROFS, "Read-only file system", "/runs/s/trials/0000/metrics.jsonl"), "disk"),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), "machine"),
        (EOFError(), "machine"),
        (dist.DistBackendError("NCCL error"), "machine"),
        (dist.DistNetworkError("The client socket has timed out"), "machine"),
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), "machine"),
        (RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:5"), "machine"),
        (PeerFailed("rank 0 ends because another rank failed"), "machine"),
        (RuntimeError("shape '[2, 3]' is invalid for input of size 5"), "code"),
        (AssertionError("5 items over 2 ranks"), "code"),
        (KeyError("answer"), "code"),
    ],
)
def test_cause(error, cause):
    assert cause_of(error) == cause


def test_a_file_of_our_own_is_no_mistake_of_the_person():
    run_dir = Path("/runs/s/trials/0000")
    lost = FileNotFoundError(errno.ENOENT, "No such file", str(run_dir / "metrics.jsonl"))
    forbidden = PermissionError(errno.EACCES, "Permission denied", str(run_dir / "metrics.jsonl"))
    data = FileNotFoundError(errno.ENOENT, "No such file", "/data/train.jsonl")
    assert [cause_of(each, run_dir) for each in (lost, forbidden, data)] == ["machine", "disk", "config"]


def test_the_error_that_explains_the_others_comes_first():
    peer = describe(PeerFailed("another rank failed"), 0)
    lost = describe(RuntimeError("gloo: connection closed by peer"), 1)
    fault = describe(KeyError("answer"), 2)
    memory = describe(MemoryError(), 3)
    assert sorted([peer, lost, fault, memory], key=blame_order) == [memory, fault, lost, peer]
    assert fault == {
        "rank": 2,
        "type": "KeyError",
        "message": "'answer'",
        "traceback": "KeyError: 'answer'\n",
        "cause": "code",
    }


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.EADDRINUSE, "Address already in use"), True),
        (dist.DistNetworkError("failed to listen. port: 1, code: -98, name: EADDRINUSE"), True),
        (dist.DistNetworkError("The client socket has timed out after 60s"), False),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (ValueError("address already in use"), False),
    ],
)
def test_a_port_in_use_is_recognised(error, expected):
    assert is_port_in_use(error) is expected
