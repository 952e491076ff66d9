import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.executors.slots import Slot, cuda_devices, plan_slots, usable_cores

LISTING = """\
GPU 0: NVIDIA H200 (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
GPU 1: NVIDIA H200 (UUID: GPU-03d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
"""
MIG_LISTING = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 2g.10gb     Device  1: (UUID: MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-03d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
"""


def plan(device="auto", ranks=1, threads=1, trials="auto", devices=(), cores=8):
    return plan_slots(
        device=device,
        num_ranks=ranks,
        num_threads=threads,
        max_concurrent_trials=trials,
        devices=devices,
        num_cores=cores,
    )


@pytest.mark.parametrize(
    ("cores", "ranks", "threads", "expected"),
    [(8, 1, 1, 8), (8, 2, 1, 4), (8, 1, 3, 2), (8, 2, 2, 2), (2, 2, 1, 1), (1, 1, 1, 1), (2, 4, 2, 1)],
)
def test_on_cpu_every_process_has_its_cores(cores, ranks, threads, expected):
    assert plan(cores=cores, ranks=ranks, threads=threads) == [Slot()] * expected


def test_on_cpu_a_number_is_taken_at_its_word():
    assert plan(cores=2, trials=3) == [Slot()] * 3
    assert plan(cores=8, trials=1) == [Slot()]


def test_gpus_are_divided_among_trials_and_ranks():
    gpus = ["0", "1", "2", "3", "4"]
    assert plan(devices=gpus) == [Slot(("0",)), Slot(("1",)), Slot(("2",)), Slot(("3",)), Slot(("4",))]
    assert plan(devices=gpus, ranks=2) == [Slot(("0", "1")), Slot(("2", "3"))]
    assert plan(devices=gpus, ranks=2, trials=1) == [Slot(("0", "1"))]


def test_several_trials_share_gpus_evenly():
    slots = plan(devices=["0", "1"], trials=4)
    assert slots == [Slot(("0",)), Slot(("1",)), Slot(("0",)), Slot(("1",))]


def test_cpu_is_used_where_it_is_asked_for_though_there_are_gpus():
    assert plan(device="cpu", devices=["0", "1"], cores=2) == [Slot(), Slot()]


@pytest.mark.parametrize(
    ("devices", "found"), [(["0"], r"found 1 \(0\)"), (["GPU-5d5b", "MIG-c6d4"], r"found 2 \(GPU-5d5b, MIG-c6d4\)")]
)
def test_fewer_gpus_than_ranks_are_refused(devices, found):
    with pytest.raises(ValueError, match=f"resources.processes_per_trial=3: each process needs a GPU .* {found}"):
        plan(devices=devices, ranks=3)


def test_cuda_without_a_gpu_is_refused():
    with pytest.raises(ValueError, match="found none"):
        plan(device="cuda")


def test_no_concurrent_trial_is_refused():
    with pytest.raises(ValueError, match=r"resources\.max_concurrent_trials=0: no trial could run"):
        plan(trials=0)


@given(st.integers(1, 16), st.integers(1, 4), st.one_of(st.just("auto"), st.integers(1, 20)))
def test_a_slot_has_a_gpu_for_each_rank_and_use_is_even(num_gpus, ranks, trials):
    devices = [str(i) for i in range(num_gpus)]
    if num_gpus < ranks:
        with pytest.raises(ValueError):
            plan(devices=devices, ranks=ranks, trials=trials)
        return
    slots = plan(devices=devices, ranks=ranks, trials=trials)
    assert all(len(set(slot.devices)) == ranks for slot in slots)
    uses = [sum(device in slot.devices for slot in slots) for device in devices[: num_gpus // ranks * ranks]]
    assert max(uses) - min(uses) <= 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0,1", ["0", "1"]),
        (" 3 , 1 ", ["3", "1"]),
        ("GPU-5d5ba0d6-d33d,GPU-03d4", ["GPU-5d5ba0d6-d33d", "GPU-03d4"]),
        ("MIG-c6d4f1ef-42e4,0", ["MIG-c6d4f1ef-42e4", "0"]),
        ("MIG-GPU-5d5ba0d6/1/0", ["MIG-GPU-5d5ba0d6/1/0"]),
        ("2,2,3", ["2", "3"]),
        ("1,-1,2", ["1"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
    ],
)
def test_the_set_of_the_person_is_what_is_divided(value, expected):
    assert cuda_devices({"CUDA_VISIBLE_DEVICES": value}, lambda: LISTING) == expected


def test_without_a_set_of_the_person_all_gpus_are_named_by_uuid():
    gpus = ["GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77", "GPU-03d4f1ef-42e4-5de3-91c7-45d71c87eb3f"]
    assert cuda_devices({}, lambda: LISTING) == gpus
    assert cuda_devices({}, lambda: "GPU 0: Some GPU\nGPU 1: Some GPU\n") == ["0", "1"]


def test_a_gpu_in_instances_is_used_through_them():
    assert cuda_devices({}, lambda: MIG_LISTING) == [
        "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f",
        "MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb",
        "GPU-03d4f1ef-42e4-5de3-91c7-45d71c87eb3f",
    ]


def test_without_a_driver_there_are_no_gpus():
    assert cuda_devices({}, lambda: None) == []
    assert cuda_devices({"CUDA_VISIBLE_DEVICES": "0"}, lambda: None) == []


def test_cores_are_those_that_this_process_may_use():
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert usable_cores() == len(allowed)
