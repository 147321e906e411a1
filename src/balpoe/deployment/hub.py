"""Models on the Hugging Face Hub: `pip install balpoe[hub]`."""

from pathlib import Path
from typing import Any

from huggingface_hub import ModelHubMixin, hf_hub_download

from balpoe.deployment.card import write_card
from balpoe.deployment.loaded_model import Model, load

__all__ = ["HubModel"]


class HubModel(Model, ModelHubMixin):
    """A model that can be published and fetched: `push_to_hub`, `save_pretrained` and `from_pretrained`.

    What is published is the folder that `balpoe card` writes, with the scores of the model's run in its card. A folder
    that is there already needs no network.

    >>> HubModel.from_pretrained("runs/trees/seed-0").push_to_hub("me/trees")  # doctest: +SKIP
    >>> issubclass(HubModel, Model)
    True
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> "HubModel":
        """Make a model without the configuration that the mixin would gather from the arguments."""
        return object.__new__(cls)

    def _save_pretrained(self, save_directory: Path) -> None:
        write_card(self, save_directory)

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None = None,
        cache_dir: str | Path | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
        token: str | bool | None = None,
        weights: str | Path = "",
    ) -> "HubModel":
        if Path(model_id).is_dir():
            return cls(**vars(load(model_id, weights=weights)))
        file = hf_hub_download(
            model_id, "model.safetensors", revision=revision, cache_dir=cache_dir, force_download=force_download,
            local_files_only=local_files_only, token=token,
        )  # fmt: skip
        return cls(**vars(load(file, weights=weights)))
