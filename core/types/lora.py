"""`LoRARequest`: the adapter of a request, as in vLLM."""

from __future__ import annotations

from dataclasses import dataclass

from core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """Selects an adapter: `generate(..., lora_request=LoRARequest("sql", 1, "/adapters/sql"))`."""

    lora_name: str
    """Name of the adapter."""
    lora_int_id: int
    """Unique positive number of the adapter."""
    lora_path: str = ""
    """Folder of the adapter, or a name that a plugin resolves."""
    base_model_name: str | None = None
    load_inplace: bool = False
    """Reload the adapter if one of this name is loaded."""

    def __post_init__(self) -> None:
        """Raise `InvalidRequest` for invalid fields."""
        if not isinstance(self.lora_name, str) or not self.lora_name:
            raise InvalidRequest("lora_name", f"must be a name, not {self.lora_name!r:.100}.")
        if type(self.lora_int_id) is not int or self.lora_int_id < 1:
            raise InvalidRequest(
                "lora_int_id", f"must be a number from 1 on, not {self.lora_int_id!r:.100}."
            )
        if not isinstance(self.lora_path, str) or not self.lora_path:
            raise InvalidRequest("lora_path", "must name the folder of the adapter.")

    @property
    def name(self) -> str:
        """Name of the adapter."""
        return self.lora_name

    @property
    def adapter_id(self) -> int:
        """Number of the adapter."""
        return self.lora_int_id

    @property
    def path(self) -> str:
        """Folder of the adapter."""
        return self.lora_path
