"""Each private name that is used does what it is used for; a version of torch that changes it fails here."""

import pytest
import timm
import torch
from torch import nn

from balpoe import private_apis


def test_standard_gamma_follows_its_generator():
    concentration = torch.full((20_000,), 2.5, dtype=torch.float64)
    draws = [private_apis.standard_gamma(concentration, torch.Generator().manual_seed(0)) for _ in range(2)]
    assert torch.equal(*draws)
    assert float(draws[0].mean()) == pytest.approx(2.5, abs=0.05)
    assert float(draws[0].var()) == pytest.approx(2.5, abs=0.1)


def test_many_tensors_at_once():
    places = [torch.zeros(2), torch.ones(3)]
    private_apis.add_to_all(places, 2)
    assert [place.tolist() for place in places] == [[2, 2], [3, 3, 3]]
    private_apis.copy_to_all(places, [torch.tensor([1.0, 2.0]), torch.zeros(3)])
    assert [place.tolist() for place in places] == [[1, 2], [0, 0, 0]]
    private_apis.move_all(places, [torch.tensor([3.0, 2.0]), torch.ones(3)], 0.5)
    assert [place.tolist() for place in places] == [[2, 2], [0.5, 0.5, 0.5]]
    between = private_apis.between_all(places, [torch.zeros(2), torch.ones(3)], 0.5)
    assert [each.tolist() for each in between] == [[1, 1], [0.75, 0.75, 0.75]]
    assert [place.tolist() for place in places] == [[2, 2], [0.5, 0.5, 0.5]]


def test_hooks_are_noticed():
    module = nn.Linear(2, 2)
    assert not private_apis.has_hooks(module)
    for register in (module.register_forward_hook, module.register_forward_pre_hook):
        handle = register(lambda *_: None)
        assert private_apis.has_hooks(module)
        handle.remove()
    assert not private_apis.has_hooks(module)


def test_a_transformer_of_timm_without_positions():
    """Its forward pass calls what is replaced; that a transformer cut there is the whole one: networks/."""
    transformer, called = timm.create_model("test_vit", pretrained=False).eval(), []
    positions = transformer._pos_embed
    transformer._pos_embed = lambda x: called.append(1) or positions(x)
    transformer(torch.zeros(1, 3, 160, 160))
    assert called == [1]
    private_apis.leave_out_positions(transformer)
    tokens = torch.randn(1, 4, 8)
    assert transformer._pos_embed(tokens) is tokens


def test_the_compiler_s_limits_are_lifted_for_a_while():
    """That this helps: tests/training/test_step.py."""
    import torch._dynamo.config
    import torch._functorch.config

    with torch._dynamo.config.patch(recompile_limit=8):  # its default, which some of torch's own functions change
        assert torch._functorch.config.backward_pass_autocast == "same_as_forward"
        with private_apis.compiling():
            assert torch._dynamo.config.recompile_limit == 256
            assert torch._functorch.config.backward_pass_autocast == "off"
        assert torch._dynamo.config.recompile_limit == 8


@pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="needs a torch with CUDA")
def test_names_of_cuda():
    assert callable(torch._C._cuda_endAllocateToPool)
    assert callable(torch._C._cuda_clearCublasWorkspaces)
    private_apis.clear_cublas_workspaces()
