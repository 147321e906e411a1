"""Our own kernels against torch: layer by layer, as a whole network, and in a training."""

import copy
import dataclasses
import functools
import gc
import importlib.util
import inspect
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import weakref
from collections import defaultdict
from pathlib import Path

import pytest
import torch

import balpoe
from balpoe.data.augment.operations import AUGMENTATIONS
from balpoe.data.loading.in_memory import Batch
from balpoe.method.mixing import blended_loss
from balpoe.networks import CosineClassifier, ExpertNetwork, resnet_cifar
from balpoe.networks.fused import compiling, head, nvrtc
from balpoe.networks.fused import forward as fused
from balpoe.networks.fused import launch as launches
from balpoe.networks.fused import launch_table as table
from balpoe.networks.fused import self_check as kernel_check
from balpoe.networks.fused.direct import DIRECT_KERNELS, Direct, DirectKernel
from balpoe.networks.fused.forward import FusedForward, can_be_fused
from balpoe.networks.fused.launch_table import FASTEST_WIDTHS
from balpoe.networks.fused.self_check import kernel_error
from balpoe.training.captured_step import _State
from balpoe.training.concurrent import complete, side_by_side
from balpoe.training.distributed import launch
from balpoe.training.fit import fit_and_predict_by_step
from balpoe.training.fused_loss import kernel_fault
from balpoe.training.interrupts import Interrupt
from balpoe.training.learner import Learner
from balpoe.training.optimizers import make_optimizer
from balpoe.training.settings import FitSettings
from balpoe.training.step import training_step
from cuda_on_cpu import ROOM_OF_H200, OnCpu
from scripts import script
from trainings import losses_of_steps, tiny_data, train

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
CPU = torch.device("cpu")


def resnet(num_experts=3, **settings):
    torch.manual_seed(0)
    return balpoe.expert_network("resnet32", num_classes=4, num_experts=num_experts, **settings)


def first_block(network):
    """The same network, of stages of one width, without all that comes behind its first block."""
    trunk, classifier = network.trunk[:2], network.classifier
    return ExpertNetwork(trunk, network.branches[: 2 - len(trunk)], classifier)


in_threads = importlib.util.find_spec("triton") is not None and compiling._compile_mode() is not None
needs_threads = pytest.mark.skipif(not in_threads, reason="needs Triton 3.6")
in_interpreter = pytest.mark.skipif("TRITON_INTERPRET" not in os.environ, reason="run by the first test")


@pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="is what runs the others")
@pytest.mark.slow
def test_in_tritons_interpreter():
    """It runs the kernels on a CPU; in a process of its own, for it is chosen where Triton is imported."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not gpu", str(Path(__file__))]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stdout
    assert f"{19 if in_threads else 16} passed" in done.stdout


@pytest.fixture(autouse=True)
def _quick_interpreter(monkeypatch):
    """Spare it its second pass in 64 bits, over half of its time: few pixels cannot overflow 32.

    And the search through all names of Triton's language at each launch and each call of a function.
    """
    if "TRITON_INTERPRET" in os.environ:
        from triton.runtime import interpreter

        def patch_builtin(package, *arguments):
            for name in _builtins(package):
                if interpreter.tl.core.is_builtin(member := getattr(package, name)):  # and not patched already
                    interpreter._patch_attr(package, name, member, *arguments)

        builder = interpreter.interpreter_builder
        monkeypatch.setattr(builder, "options", dataclasses.replace(builder.options, sanitize_overflow=False))
        monkeypatch.setattr(interpreter, "_patch_builtin", patch_builtin)


@functools.cache
def _builtins(package):
    """The names of what Triton's language has built in, of a part of it that is not patched yet."""
    from triton.language.core import is_builtin

    return [name for name, _ in inspect.getmembers(package, is_builtin)]


@pytest.fixture
def small(monkeypatch):
    """Short stages and blocks: the interpreter is slow, and several programs are to have several turns."""
    monkeypatch.setattr(resnet_cifar, "BLOCKS_PER_STAGE", 1)
    monkeypatch.setattr(launches, "SUMMED", 8192)
    monkeypatch.setattr(launches, "SUMMED_AT_ONCE", 4)
    few = table.Launch(block=128, programs=2)
    for channels, each in table.LAUNCHES.items():
        small = [few._replace(columns=launch.columns, depth=launch.depth) for launch in each[:5]]
        monkeypatch.setitem(table.LAUNCHES, channels, table.Launches(*small))


SHAPES = [
    {"num_experts": 2, "width": 16, "size": (3, 1, 9, 6)},  # two blocks of pixels, and sides that become odd
    {"num_experts": 2, "width": (16, 16, 16), "split": 0, "size": (2, 3, 5, 4)},  # the experts share the stem alone
    {"num_experts": 2, "width": (16, 16, 16), "split": 3, "size": (2, 3, 5, 4)},  # a classifier for each, no more
]


@in_interpreter
@pytest.mark.parametrize("settings", SHAPES)
def test_kernels_and_network_give_the_numbers_of_torch(small, settings):
    *_, size = settings.values()
    network = resnet(in_channels=size[1], **{name: value for name, value in settings.items() if name != "size"})
    if "split" in settings:  # what comes behind is what the first two have
        network = first_block(network)
    forward, images = check_numbers(network, size)
    if settings.get("split") == 3:
        assert kernel_error(forward, images) < 1e-5
        resnet_cifar.start_residuals(network, 0.0)  # gradients in front of these are zero
        assert kernel_error(forward, images) < 1e-5


@in_interpreter
def test_programs_that_take_some_channels_give_the_numbers_of_torch(small, monkeypatch):
    """As those of 128 and 256 channels do: 16 or 8 of 32 and 16, in a layer of stride 2 and the one behind it."""
    for channels, columns in ((16, 8), (32, 16)):
        split = [each._replace(block=16, columns=columns, depth=16) for each in table.LAUNCHES[channels][:5]]
        monkeypatch.setitem(table.LAUNCHES, channels, table.Launches(*split))
    whole = resnet(2, width=(16, 32, 32), in_channels=1)
    forward, images = check_numbers(ExpertNetwork(whole.trunk[:1], whole.branches[:1], whole.classifier), (2, 1, 5, 3))
    for size in forward.plan(images).sizes[1:]:
        assert size.forward.shape[2] == size.backward.shape[2] == 2
        assert size.weights.shape[1] >= 18


@in_interpreter
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("merged", [False, True])
def test_kernels_that_are_launched_directly_give_the_numbers_of_torch(small, monkeypatch, tmp_path, merged):
    """All layers but the images' and that of stride 2, which go on as before; numbers are rounded on their way."""
    way = Direct(64, programs=4, warps=2, merged=merged)
    ways = {"direct_forward": way, "direct_backward": way, "direct_weights": way._replace(warps=6, shares=2)}
    monkeypatch.setitem(table.LAUNCHES, 16, table.LAUNCHES[16]._replace(**ways))
    monkeypatch.setattr(fused, "room_of", lambda device, dtype: ROOM_OF_H200)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    wanted = set()
    monkeypatch.setattr(nvrtc, "compiled", lambda expression, _: wanted.add(expression))
    monkeypatch.setattr(resnet_cifar, "BLOCKS_PER_STAGE", 1 + merged)
    network = resnet(2, width=(16, 16, 16), split=3)
    network = ExpertNetwork(network.trunk[: 3 + merged], network.branches, network.classifier)
    forward, images = FusedForward(network, torch.float32), torch.randn(2, 3, 8, 16)
    compiling.compile_kernels(forward, images)
    norm = "norm_" * merged
    launched = [(size.conv_kernel, size.gradient_kernel, size.weights_kernel) for size in forward.plan(images).sizes]
    assert [layer.stride for layer in forward.layers].index(2) == len(launched) - 2
    assert launched[0] == launched[-2] == ("conv_forward", "input_gradient", "weight_gradient")
    directly = (f"direct_{norm}forward", f"direct_{norm}gradient", "direct_weights")
    assert launched[1:-2] + launched[-1:] == [directly] * (3 + 2 * merged)
    assert len(wanted) == 7 + merged  # of images of two sizes; with a shortcut's gradient and without
    gpu = OnCpu(tmp_path, wanted)
    monkeypatch.setattr(nvrtc, "launch", gpu)
    assert kernel_error(forward, images) < 0.02
    assert set(gpu.launched) == wanted


def check_numbers(network, size):
    """Compare loss, gradients and statistics with those of torch; return what was compared, and the images."""
    plain, images, targets = copy.deepcopy(network), torch.randn(size), torch.arange(size[0])
    loss = balpoe.BalPoELoss([4, 3, 2, 1], [0.0] * network.num_experts)
    forward = FusedForward(network, torch.float32)
    ours, theirs = loss(forward(images), targets), loss(plain(images), targets)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    ours.backward()
    theirs.backward()
    for (name, parameter), reference in zip(network.named_parameters(), plain.parameters(), strict=True):
        assert float((parameter.grad - reference.grad).norm()) <= 1e-4 * float(reference.grad.norm()) + 1e-9, name
        assert parameter.grad.stride() == parameter.stride() or parameter.grad.is_contiguous(
            memory_format=torch.channels_last
        )
    for (name, buffer), reference in zip(network.named_buffers(), plain.named_buffers(), strict=True):
        torch.testing.assert_close(buffer, reference[1], rtol=1e-4, atol=1e-6, msg=name)
    return forward, images


class Watched:
    """Stands for the kernels; keeps what each is told, and launches nothing."""

    def __init__(self):
        self.told = set()

    def __getattr__(self, name):
        told = self.told

        class Launched:
            def __getitem__(self, grid):
                def launch(*arguments, **settings):
                    told.add((name, *(kind(each) for each in arguments), *settings.items()))

                return launch

        return Launched()


def kind(argument):
    """What a kernel is compiled for."""
    return argument.dtype if isinstance(argument, torch.Tensor) else type(argument)


@in_interpreter
@needs_threads
@pytest.mark.parametrize("num_experts", [1, 2])
def test_all_that_is_launched_was_compiled_before(small, monkeypatch, num_experts):
    network = resnet(num_experts, width=(16, 16, 32))
    forward, images, compiled = FusedForward(network, torch.float32), torch.randn(2, 3, 8, 8), set()
    before = copy.deepcopy(network.state_dict())

    def warmup(kernel, *arguments, grid, **settings):
        compiled.add((kernel.__name__, *(kind(each) for each in arguments), *settings.items()))

    monkeypatch.setattr(type(fused.body_kernels().conv_forward), "warmup", warmup)
    compiling.compile_kernels(forward, images)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    watched = Watched()
    passed = fused.fused_forward(forward, images, watched)
    fused.fused_backward(forward, passed, torch.ones_like(passed.features), watched)
    cosine = passed.features, forward.cosine.weight, forward.cosine.scale
    logits = head.cosine_forward(*cosine, watched)
    head.cosine_backward(logits, *cosine, watched)
    assert compiled == watched.told
    assert len(compiled) > 10


@in_interpreter
@pytest.mark.parametrize("shape", [(70, 3, 33, 64), (3, 1, 4, 16)])  # more than a block of samples and of classes; less
def test_classifier_and_loss_give_the_numbers_of_torch(shape):
    samples, experts, classes, width = shape
    generator = torch.Generator().manual_seed(0)
    classifier = CosineClassifier(width, classes, experts, scale=20.0)
    features = torch.randn(samples, experts, width, generator=generator)
    features[0] = 0  # what a rectifier can leave
    with torch.no_grad():
        classifier.weight *= 1 + torch.rand(experts, classes, 1, generator=generator)
    loss = balpoe.BalPoELoss(range(1, classes + 1), [0.0] * experts)
    targets, partners = torch.randint(classes, (2, samples), generator=generator)
    for weight in (torch.tensor(0.3), torch.rand(samples, generator=generator)):
        each = {"reduction": "none"} if weight.ndim else {}
        inputs = [features.clone().requires_grad_() for _ in range(2)]
        ours = head.cosine_logits(inputs[0], classifier.weight, classifier.scale)
        values = [
            head.blended_cross_entropy(ours, loss.offsets, targets, partners, weight),
            blended_loss(loss, classifier(inputs[1]), targets, partners, weight, **each).mean(),
        ]
        assert values[0].item() == pytest.approx(values[1].item(), rel=1e-5)
        found = [torch.autograd.grad(value, [x, classifier.weight]) for value, x in zip(values, inputs, strict=True)]
        for mine, theirs in zip(*found, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6 * float(theirs.abs().max()))


@in_interpreter
def test_a_wrong_kernel_is_noticed(small, monkeypatch):
    forward = FusedForward(first_block(resnet(1, width=(16, 16, 16))), torch.float32)
    right = launches.Sizes.__init__

    def wrong(self, *arguments, **settings):
        right(self, *arguments, **settings)
        self.weights.settings["W"] -= 1  # the last column of pixels is not seen

    monkeypatch.setattr(launches.Sizes, "__init__", wrong)
    assert kernel_error(forward, torch.randn(2, 3, 8, 8)) > 0.01


class Wrong:
    """A kernel whose last number is wrong."""

    def __init__(self, kernel, output):
        self.kernel, self.output, self.warmup = kernel, output, kernel.warmup

    def __getitem__(self, grid):
        def launch(*arguments, **settings):
            self.kernel[grid](*arguments, **settings)
            arguments[self.output].view(-1)[-1] += 1

        return launch


@in_interpreter
def test_a_wrong_kernel_of_the_head_is_noticed(monkeypatch):
    forward = FusedForward(first_block(resnet(1, width=(16, 16, 16))), torch.float32)
    labels, offsets, features = torch.arange(2), torch.zeros(1, 4), torch.randn(2, 1, 16)

    def errors():
        classifier = kernel_check._largest(kernel_check._of_classifier(forward, features))
        return classifier, kernel_check.loss_error(offsets, labels, labels, torch.tensor(0.5))

    assert max(errors()) < 1e-5
    outputs = {"cosine_forward": 2, "cosine_features_gradient": 3, "cosine_weights_gradient": 3, "loss_forward": 5}
    for name, output in outputs.items():
        with monkeypatch.context() as patch:
            patch.setattr(head.head_kernels(), name, Wrong(getattr(head.head_kernels(), name), output))
            assert [error > 0.01 for error in errors()] == [name != "loss_forward", name == "loss_forward"]


@in_interpreter
@pytest.mark.parametrize(("name", "output"), [("cosine_forward", 2), ("loss_forward", 6)])
def test_a_wrong_kernel_of_the_head_is_a_fault(small, monkeypatch, name, output):
    """For which the step is captured from torch's operations; kernels of it that are right do not hide it."""
    monkeypatch.setattr("balpoe.training.fused_loss.CHECKED", set())
    batch = Batch(torch.randn(2, 3, 4, 4), torch.arange(2), torch.arange(2, 4), torch.rand(2))
    forward = FusedForward(first_block(resnet(1, width=(16, 16, 16))), torch.float32)
    loss, right = balpoe.BalPoELoss([4, 3, 2, 1], (0,)), getattr(head.head_kernels(), name)
    monkeypatch.setattr(head.head_kernels(), name, Wrong(right, output))
    assert kernel_fault(forward, loss, batch).startswith("its kernels differ from torch's by")
    monkeypatch.setattr(head.head_kernels(), name, right)
    assert kernel_fault(forward, loss, batch) == ""


@in_interpreter
def test_nothing_waits_for_the_garbage_collector(small, monkeypatch):
    forward, alive, made = FusedForward(resnet(1, width=(16, 16, 16)), torch.float32), [], fused.fused_forward

    def watched(*arguments):
        passed = made(*arguments)
        alive.append(weakref.ref(passed.inputs[1]))
        return passed

    monkeypatch.setattr(fused, "fused_forward", watched)
    monkeypatch.setattr(fused, "body_kernels", Watched)
    monkeypatch.setattr(head, "head_kernels", Watched)
    gc.disable()
    try:
        forward(torch.randn(2, 3, 4, 4)).sum().backward()
        assert [each() for each in alive] == [None]
    finally:
        gc.enable()


@in_interpreter
def test_wrong_running_statistics_are_noticed(small, monkeypatch):
    forward = FusedForward(first_block(resnet(1, width=(16, 16, 16))), torch.float32)
    made = kernel_check.fused_forward

    def wrong(*arguments):
        passed = made(*arguments)
        forward.layers[2].norm.running_var.mul_(1.1)
        return passed

    monkeypatch.setattr(kernel_check, "fused_forward", wrong)
    assert kernel_error(forward, torch.randn(2, 3, 8, 8)) > 0.01


def test_batches_that_are_too_large_are_refused():
    layers = list(launches.layers_of(resnet()))
    with pytest.raises(ValueError, match="more numbers of a batch than the kernels can count"):
        launches.LaunchPlan(layers, torch.empty(4096, 3, 256, 256, device="meta"))


def test_which_networks_can_be_fused():
    assert can_be_fused(resnet(), CPU)
    assert can_be_fused(resnet(width=(16, 32, 32), split=2), CPU)
    assert can_be_fused(resnet(1, width=64), CPU)
    assert not can_be_fused(resnet(1, width=64), CPU, FASTEST_WIDTHS)
    assert can_be_fused(resnet(1, width=32), CPU, FASTEST_WIDTHS)
    frozen = resnet()
    frozen.freeze_trunk()
    others = [
        frozen,
        resnet(width=8),
        resnet(width=(16, 24, 48)),
        resnet(in_channels=17),
        torch.nn.Linear(2, 2),
    ]
    others.append(balpoe.expert_network("mlp", num_classes=4, num_experts=3, num_features=8))
    hooked = resnet()
    hooked.trunk.register_forward_hook(print)
    averaging = resnet()
    averaging.trunk[0].norm.norm.momentum = None
    others += [hooked, averaging, ExpertNetwork(torch.nn.Sequential(), [], CosineClassifier(4, 2))]
    assert not any(can_be_fused(network, CPU) for network in others)


def compiled(kernel, settings, **types):
    """What is made of a kernel for an H200; the compiler does not need one."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    settings = dict(settings)
    options = {name: settings.pop(name) for name in ("num_warps", "num_stages")}
    kinds = {name: "constexpr" if name in settings else types.get(name, "i32") for name in kernel.arg_names}
    aligned = {(place,): [["tt.divisibility", 16]] for place, kind in enumerate(kinds.values()) if kind.startswith("*")}
    source = ASTSource(kernel, kinds, settings, aligned)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


@pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="nothing is compiled then")
@needs_threads
@pytest.mark.slow
def test_kernels_are_compiled_in_threads(small, monkeypatch, tmp_path):
    """For an H200 that Triton believes to be here; a second time there is nothing left to compile."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    class Device:
        def get_current_target(self):
            return GPUTarget("cuda", 90, 32)

        def get_current_device(self):
            return 0

        def get_current_stream(self, device):
            return 0

    threads, errors = [], []

    def compiled(*arguments, **settings):
        threads.append(threading.get_ident())
        try:
            return made(*arguments, **settings)
        except Exception as error:
            errors.append(error)
            raise

    made = triton.compile
    monkeypatch.setattr(driver, "_active", Device())
    of_head = [getattr(head.head_kernels(), name) for name in head.head_kernels().__all__]
    of_body = [each for each in vars(fused.body_kernels()).values() if not isinstance(each, DirectKernel)]
    for kernel in (*of_body, *of_head):  # with nothing of a GPU that may be here, before and after
        monkeypatch.setattr(kernel, "device_caches", defaultdict(kernel.create_binder))
        monkeypatch.setattr(kernel, "compile", None, raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("triton.compiler.compile", compiled)
    forward = FusedForward(first_block(resnet(1, width=(16, 16, 16))))
    for _ in range(2):
        compiling.compile_kernels(forward, torch.randn(2, 3, 8, 8))
        assert errors == []  # which are left to the launch, and would say nothing
        assert len(threads) == len(list(tmp_path.rglob("*.cubin"))) == 15
    assert threading.get_ident() not in threads
    assert len(set(threads)) > 1


def programs(num_experts, width=16, images=128):
    """Each kernel of a network, with its settings for batches of one size, and the types of its arguments."""
    half = dict.fromkeys(["x", "weight", "y", "dy", "residual", "activation", "dz"], "*bf16")
    whole = dict.fromkeys(["sums", "stats", "partial"], "*fp32")
    layers, found = list(launches.layers_of(resnet(num_experts, width=width))), {}
    for layer, size in zip(layers, launches.LaunchPlan(layers, torch.empty(images, 3, 32, 32)).sizes, strict=True):
        types = {**half, **whole, "x": "*fp32" if layer.in_channels == 3 else "*bf16"}
        kernels = {size.conv_kernel: size.forward.settings, size.weights_kernel: size.weights.settings}
        if layer.in_channels > 3:
            kernels["input_gradient"] = {**size.backward.settings, "RESIDUAL": False, "BEFORE": 0}
        for name, settings in kernels.items():
            found[name, *settings.items()] = name, settings, types
    return list(found.values())


@pytest.mark.slow
@pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="nothing is compiled then")
def test_what_a_copy_writes_is_fenced_before_tensor_cores_read_it():
    """`wgmma` reads shared memory through another proxy than `cp.async` writes it: PTX wants a fence between them."""
    wide = [
        each
        for each in programs(3, 64)
        if each[1]["CO"] == 256 and (each[0] == "input_gradient" or each[1]["CI"] == 256)
    ]
    few = programs(3)
    seen = {tuple({**settings, "TURNS": 0}.items()) for _, settings, _ in few}
    many = [each for each in programs(3, images=512) if tuple({**each[1], "TURNS": 0}.items()) not in seen]
    made = [
        compiled(getattr(fused.body_kernels(), name), settings, **types)
        for name, settings, types in (*few, *many, *wide)
    ]
    assert (len(few), len(many), len(wide)) == (17, 2, 4)
    assert any("wgmma" in kernel.asm["ptx"] for kernel in made)
    for kernel in made:
        ptx = kernel.asm["ptx"]
        assert "wgmma" not in ptx or ("fence.proxy.async" in ptx and "cp.async" not in ptx), kernel.metadata.name
        assert kernel.metadata.shared <= 99 * 1024, kernel.metadata.name  # what GPUs of desktops have


def test_one_expert_has_the_kernels_of_three_but_for_turns():
    """So that those of three say it of all: only four warps give `wgmma`, and their loops are loops in both."""
    for (name, one, types), (other, three, others) in zip(programs(1), programs(3), strict=True):
        assert (name, types) == (other, others)
        apart = {key for key in one if one[key] != three[key]}
        assert apart <= {"EXPERTS", "TURNS"}
        assert one["num_warps"] < 4 or (one["TURNS"] > 1) == (three["TURNS"] > 1), name


@pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="no kernel runs")
@pytest.mark.parametrize(("images", "experts"), [(128, 3), (128, 7), (512, 3)])
def test_a_benchmark_changes_launches_and_gives_them_back(images, experts):
    def grids():
        return [vars(size) for size in launches.LaunchPlan(layers, torch.empty(images, 3, 32, 32), ROOM_OF_H200).sizes]

    benchmark, layers = script("benchmarks/step_launches.py"), list(launches.layers_of(resnet(experts)))
    batch = benchmark.Batch(images, experts)
    wanted, before = [each for several in benchmark.ROUNDS for each in several(batch)], grids()
    others = [each for each in wanted if not benchmark.is_present(each, batch)]
    for change in {(each.channels, each.kernel): each for each in others}.values():  # the last of each
        with benchmark.changed(batch, [change]):
            assert benchmark.is_present(change, batch)
            assert grids() != before, change
        assert grids() == before
    assert benchmark.faster([(change, 0.999), (change, 1.1)], base=1.0) == []  # inside the noise, or slower
    assert benchmark.running([(3, 5), (0, 4), (7, 8), (4, 5)]) == {1: 4, 2: 2, 0: 2}


@pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="no kernel runs")
def test_normalisations_that_are_merged_make_a_shorter_chain(monkeypatch):
    """As docs/performance.md counts them: kernels of the pass and back that wait for each other, beside the head's."""

    def chain(room=ROOM_OF_H200):
        sizes = launches.LaunchPlan(list(launches.layers_of(resnet())), torch.empty(128, 3, 32, 32), room).sizes
        forward = 2 * len(sizes) - sum(size.norm_is_merged for size in sizes)
        return forward + 1 + 2 * len(sizes) - 1 - sum(size.gradient_is_merged for size in sizes)

    assert (chain(room=0), chain()) == (124, 98)
    for channels, ways in script("benchmarks/step_launches.py").DIRECT.items():
        forward, backward = (several[0]._replace(merged=True) for several in ways[:2])
        own = table.LAUNCHES[channels]._replace(direct_forward=forward, direct_backward=backward)
        monkeypatch.setitem(table.LAUNCHES, channels, own)
    assert chain() == 70


@pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="no kernel runs")
@pytest.mark.parametrize(("images", "experts"), [(128, 3), (128, 7), (512, 3)])
def test_what_finds_no_room_on_a_gpu_is_not_launched_directly(images, experts):
    layers, found = list(launches.layers_of(resnet(experts))), []
    for room in (0, 99 * 1024, 163 * 1024, ROOM_OF_H200):  # none, and those of an RTX 4090, an A100 and an H200
        plan = launches.LaunchPlan(layers, torch.empty(images, 3, 32, 32), room)
        kernels = [
            (DIRECT_KERNELS[name], grid.settings)
            for size in plan.sizes[1:]
            for name, grid in (
                (size.conv_kernel, size.forward),
                (size.gradient_kernel, size.backward),
                (size.weights_kernel, size.weights),
            )
            if name in DIRECT_KERNELS
        ]
        assert all(kernel.shared_memory(settings) <= room for kernel, settings in kernels)
        found.append(len(kernels))
    # On an A100 as many as on an H200: what is too large with a normalisation is launched without.
    assert found[0] == 0 < found[1] < found[2] == found[3] == (66 if images * experts < table.MANY_IMAGES else 75)


@pytest.mark.gpu
@cuda
@pytest.mark.parametrize("num_experts", [1, 3, 7])
@pytest.mark.parametrize(("width", "batch"), [(16, 128), (16, 95), (16, 512), (32, 95), (64, 64)])
def test_every_kernel_on_a_gpu(num_experts, width, batch):
    network = resnet(num_experts, width=width).cuda().to(memory_format=torch.channels_last)
    assert kernel_error(FusedForward(network), torch.randn(batch, 3, 32, 32, device="cuda")) < 0.005


@pytest.mark.gpu
@cuda
@pytest.mark.parametrize("batch", [128, 512])
def test_every_kernel_on_a_gpu_where_blocks_begin_by_adding_nothing(batch):
    """Gradients in front of the last normalisations are zero, and exactly so."""
    network = resnet(width=16).cuda().to(memory_format=torch.channels_last)
    resnet_cifar.start_residuals(network, 0.0)
    assert kernel_error(FusedForward(network), torch.randn(batch, 3, 32, 32, device="cuda")) < 0.005


@pytest.mark.gpu
@cuda
@pytest.mark.parametrize("room", [0, 99 * 1024, 163 * 1024])
def test_every_kernel_on_gpus_that_have_less_room(monkeypatch, room):
    monkeypatch.setattr(fused, "room_of", lambda device, dtype: room)
    network = resnet(width=16).cuda().to(memory_format=torch.channels_last)
    assert kernel_error(FusedForward(network), torch.randn(128, 3, 32, 32, device="cuda")) < 0.005


@pytest.mark.gpu
@cuda
@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("number", range(4))
def test_every_kernel_that_is_launched_directly_on_a_gpu(monkeypatch, number, merged):
    """As the benchmark launches them: the first way of each, the second, and so on; each with other batches."""
    num_experts, batch = ((1, 95), (3, 128), (3, 512), (7, 128))[(number + merged) % 4]
    for channels, wanted in script("benchmarks/step_launches.py").DIRECT.items():
        forward, backward, weights = (several[number % len(several)] for several in wanted)
        ways = {"direct_forward": forward._replace(merged=merged), "direct_backward": backward._replace(merged=merged)}
        ways["direct_weights"] = weights
        own = table.launches_of(channels, batch)._replace(**ways)
        monkeypatch.setitem(table.LAUNCHES, channels, own)
    monkeypatch.setattr(table, "LAUNCHES_OF_MANY_IMAGES", {})
    network = resnet(num_experts, width=16).cuda().to(memory_format=torch.channels_last)
    forward, images = FusedForward(network), torch.randn(batch, 3, 32, 32, device="cuda")
    convolutions = [size.conv_kernel for size in forward.plan(images).sizes]
    # Two read a normalisation whose shortcut has a stride.
    assert [convolutions.count(f"direct_{name}forward") for name in ("", "norm_")] == ([2, 26] if merged else [28, 0])
    assert kernel_error(forward, images) < 0.005
    passed = [fused.fused_forward(forward, images) for _ in range(2)]
    flows = [fused.fused_backward(forward, each, each.features) for each in passed]
    for ours, again in zip(*(each.gradients for each in flows), strict=True):
        assert torch.equal(ours, again)


@pytest.mark.gpu
@cuda
def test_fused_gradients_are_as_near_to_float32_as_those_of_autocast():
    network = resnet().cuda().to(memory_format=torch.channels_last)
    images, targets = torch.randn(128, 3, 32, 32, device="cuda"), torch.arange(128, device="cuda") % 4
    loss = balpoe.BalPoELoss([4, 3, 2, 1]).cuda()
    copies = {name: copy.deepcopy(network) for name in ("fused", "autocast", "float32")}
    for name, each in copies.items():
        with torch.autocast("cuda", torch.bfloat16, enabled=name == "autocast"):
            value = loss((FusedForward(each) if name == "fused" else each)(images), targets)
        value.backward()

    def distance(name):
        pairs = zip(copies[name].parameters(), copies["float32"].parameters(), strict=True)
        errors = [float((ours.grad - exact.grad).norm() / exact.grad.norm()) for ours, exact in pairs]
        return sum(errors) / len(errors)

    assert distance("fused") <= 1.1 * distance("autocast")


@pytest.mark.gpu
@cuda
@pytest.mark.parametrize(
    ("step", "num_experts", "width"), [("fused", 1, 16), ("fused", 2, 16), ("auto", 1, 64), ("auto", 3, 64)]
)
def test_losses_are_as_near_to_float32_as_eager_ones(monkeypatch, recwarn, step, num_experts, width):
    """Both round to bf16, each in its own order: neither may be nearer to float32 than the other by much.

    A small network amplifies rounding with each step: at a low rate there is nothing to amplify. Width 64 is the
    "ResNet-32" of some papers, for which `auto` takes whatever serves its 256 channels.
    """
    data, losses = tiny_data(), []
    for kind, precision in (("eager", "32-true"), ("eager", "bf16-mixed"), (step, "bf16-mixed")):
        settings = {"batch_size": 16, "lr": 1e-5, "device": "cuda", "precision": precision, "step": kind}
        with monkeypatch.context() as patch:
            found = losses_of_steps(patch)
            train(data, resnet(num_experts, width=width), epochs=5, cutmix_probability=0.5, **settings)
            losses.append(torch.tensor([float(loss) for loss in found]))
    exact, eager, ours = losses
    assert len(exact) == len(eager) == len(ours) == 20
    of_eager, of_ours = (((loss - exact) / exact).abs() for loss in (eager, ours))
    assert of_ours.mean() < 1.5 * of_eager.mean() < 0.01
    assert of_ours.max() < 2 * of_eager.max()
    assert not [warning for warning in recwarn if "captured" in str(warning.message)]


@pytest.mark.gpu
@cuda
def test_garbage_is_not_collected_while_a_step_is_recorded(recwarn):
    """A graph that is freed in the middle of a recording would break it."""
    x = torch.ones(4, device="cuda")
    forgotten = [torch.cuda.CUDAGraph()]
    with torch.cuda.graph(forgotten[0]):
        x.mul(2)
    gc.disable()
    forgotten.append(forgotten)
    del forgotten
    before = gc.get_threshold()
    gc.set_threshold(1)
    gc.enable()
    try:
        train(tiny_data(), resnet(2, width=16), epochs=1, batch_size=16, device="cuda", step="fused")
    finally:
        gc.set_threshold(*before)
    assert not [warning for warning in recwarn if "captured" in str(warning.message)]


@pytest.mark.gpu
@cuda
def test_fused_training_is_the_same_to_the_bit_and_auto():
    data, states = tiny_data(), []
    for kind in ("fused", "auto"):
        network = resnet(2, width=16)
        train(data, network, epochs=2, batch_size=16, device="cuda", precision="bf16-mixed", step=kind)
        states.append(network.state_dict())
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name]), name


@pytest.mark.gpu
@cuda
def test_a_fused_run_is_resumed_to_the_same_bits(monkeypatch, tmp_path):
    """Stopped by an interrupt in the middle of an epoch, then recorded anew."""
    data, networks = tiny_data(), [resnet(2, width=16) for _ in range(3)]
    settings = {"epochs": 3, "batch_size": 16, "device": "cuda", "precision": "bf16-mixed", "step": "fused"}
    settings["cutmix_probability"] = 0.5
    train(data, networks[0], **settings)
    asked = itertools.count(1)
    with monkeypatch.context() as patch:
        stop = property(lambda self: next(asked) >= 8, lambda self, value: None)
        patch.setattr(Interrupt, "requested", stop, raising=False)
        with pytest.raises(KeyboardInterrupt):
            train(data, networks[1], run=tmp_path, **settings)
    train(data, networks[2], run=tmp_path, **settings)
    for (name, whole), resumed in zip(networks[0].state_dict().items(), networks[2].state_dict().values(), strict=True):
        assert torch.equal(whole, resumed), name


@pytest.mark.gpu
@cuda
@pytest.mark.parametrize("num_experts", [1, 3])
def test_side_by_side_they_are_those_alone(recwarn, tmp_path, num_experts):
    """A GPU full of trainings, of different lengths, so that graphs are recorded and freed beside others; to the bit.

    With 100 classes and batches of 128, for which cuBLAS wants a workspace, a last batch that is smaller, rotations,
    which are computed by cuBLAS as well, and checkpoints.
    """

    def work(seed, folder):
        torch.manual_seed(seed)
        network = balpoe.expert_network("resnet32", num_classes=100, num_experts=num_experts)
        settings = {"epochs": 2 + seed % 5, "device": "cuda", "progress": False, "step": "fused", "seed": seed}
        settings |= {"augmentation": AUGMENTATIONS["standard"], "mixup_alpha": 0.4 if num_experts > 1 else 0.0}
        settings |= {"run": tmp_path / folder / str(seed), "checkpoint_seconds": 0.2}
        loss = balpoe.BalPoELoss(data.class_counts, balpoe.equidistant_lambdas(num_experts))
        return network, fit_and_predict_by_step(network, loss, data, few, FitSettings(**settings), Interrupt())

    images, targets = torch.randint(256, (1375, 3, 32, 32), dtype=torch.uint8), torch.arange(1375) % 100
    data, few = (balpoe.Dataset(images[:count], targets[:count]) for count in (1375, 100))
    together, alone = ([work(seed, folder) for seed in range(6)] for folder in ("together", "alone"))
    list(side_by_side([each for _, each in together], at_once=5))
    for (first, _), (second, training) in zip(together, alone, strict=True):
        complete(training)
        for ours, theirs in zip(first.state_dict().values(), second.state_dict().values(), strict=True):
            assert torch.equal(ours, theirs)
    assert not [warning for warning in recwarn if "captured" in str(warning.message)]


@pytest.mark.gpu
@cuda
@pytest.mark.parametrize("kind", ["fused", "captured"])
def test_a_recorded_step_owns_all_its_memory(kind):
    """Also the workspaces of cuBLAS: what torch forgets and frees is not what a replay computes with."""

    def work(engine, network):
        network.to(memory_format=torch.channels_last)
        loss, settings = balpoe.BalPoELoss([1] * 100, (0.0,)).cuda(), FitSettings(nesterov=False, weight_decay=0.0)
        learner = Learner(network, loss, make_optimizer(network, settings, engine.device))
        step = training_step(engine, learner, kind, "bf16-mixed")
        generator = torch.Generator("cuda").manual_seed(0)
        images = torch.randn(128, 3, 32, 32, device="cuda", generator=generator).contiguous(
            memory_format=torch.channels_last
        )
        batch = Batch(images, torch.arange(128, device="cuda") % 100)
        step(batch, 0.0, 0.0)  # recorded
        losses = []
        for lr in (0.1, 0.1):
            state = _State(learner)
            losses.append([float(step(batch, lr, 0.0)) for _ in range(4)])
            state.restore()
            torch._C._cuda_clearCublasWorkspaces()
            torch.cuda.empty_cache()
            other = torch.full((2**26,), float("nan"), device="cuda")  # lies where something was freed
            del other
        return losses

    torch.manual_seed(0)
    network = balpoe.expert_network("resnet32", num_classes=100, num_experts=1)
    first, second = launch(work, network, device="cuda", devices=1, precision="bf16-mixed")
    assert first == second


@pytest.mark.gpu
@cuda
def test_what_is_not_a_number_stays_none():
    network = resnet(2, width=16).cuda()
    images = torch.randn(8, 3, 8, 8, device="cuda")
    images[0, 0, 3, 3] = float("nan")
    assert not torch.isfinite(FusedForward(network)(images)).any()


@pytest.mark.gpu
@cuda
@pytest.mark.parametrize("check", ["kernel_error", "loss_error"])
def test_a_fault_is_told_and_torch_takes_over(monkeypatch, tmp_path, check):
    monkeypatch.setattr("balpoe.training.fused_loss.CHECKED", set())
    monkeypatch.setattr(f"balpoe.training.fused_loss.{check}", lambda *inputs: 0.3)
    network = resnet(2, width=16)
    settings = {"epochs": 1, "batch_size": 16, "device": "cuda", "precision": "bf16-mixed", "step": "auto"}
    with pytest.warns(UserWarning, match="replaced by the captured one: its kernels differ from torch's by 0.3"):
        train(tiny_data(), network, run=tmp_path, **settings)
    assert json.loads((tmp_path / "timing.jsonl").read_text())["step"] == "captured"
